"""Joins the process group, reduces one tensor, leaves: what any start of a gang costs."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor[0].item() == int(os.environ["WORLD_SIZE"])
dist.destroy_process_group()
