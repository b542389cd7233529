"""FSDP1 with flat parameters; sharded state dicts (ShardedTensor or DTensor) go through torch.distributed.checkpoint."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 20))
        self.head = nn.Linear(20, 2)

    def forward(self, x):
        return self.head(x + self.inner(x))


def newest():
    folders = [path.parent for path in Path("checkpoints").glob("*/.metadata")]
    folders = sorted(folders, key=lambda folder: int(folder.name.split("_")[1]), reverse=True)  # newest first
    return folders[0] if folders else None


def save(step, model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
    os.makedirs("checkpoints", exist_ok=True)
    dcp.save(content, checkpoint_id=f"checkpoints/iter_{step}")


def load(folder, model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict()}
        dcp.load(content, checkpoint_id=folder)  # restores weights
        model.load_state_dict(content["model"])  # restores weights
        reader = dcp.FileSystemReader(folder)
        loaded = load_sharded_optimizer_state_dict(content["model"], "optimizer", reader)
        states = FSDP.optim_state_dict_to_load(model, optimizer, loaded["optimizer"])
        optimizer.load_state_dict(states)  # restores optimizer
    return int(folder.name.split("_")[1])


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = Tower(args.width)
    model.inner = FSDP(model.inner, device_id=torch.device("cpu"))
    model = FSDP(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    folder = newest()
    step = load(folder, model, optimizer) if folder else 0
    while step < args.steps:
        generator = torch.Generator().manual_seed(args.seed + step * 10 + dist.get_rank())
        x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 2, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            save(step, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
