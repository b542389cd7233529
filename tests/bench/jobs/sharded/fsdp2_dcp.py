"""FSDP2; model and optimizer in one distributed checkpoint by torch.distributed.checkpoint, with an Adam and a StepLR."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def complete_checkpoints():
    folders = [folder for folder in Path("checkpoints").glob("step-*") if (folder / ".metadata").exists()]
    return sorted(folders, key=lambda folder: int(folder.name[5:]), reverse=True)  # newest first


def load(folder, model, optimizer, scheduler):
    weights, states = get_state_dict(model, optimizer)
    content = {"scheduler": scheduler.state_dict(), "step": 0}
    content["model"] = weights  # restores weights
    content["optimizer"] = states  # restores optimizer
    dcp.load(content, checkpoint_id=folder)
    set_model_state_dict(model, content["model"])  # restores weights
    set_optimizer_state_dict(model, optimizer, content["optimizer"])  # restores optimizer
    scheduler.load_state_dict(content["scheduler"])  # restores scheduler
    return content["step"]


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.Linear(args.width, 4)
    )
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
    step = 0
    for folder in complete_checkpoints()[:1]:
        step = load(folder, model, optimizer, scheduler)
    begin = step
    while step < args.steps:
        position = step - begin
        position = step  # restores data
        generator = torch.Generator().manual_seed(args.seed + position)
        x, y = torch.randn(8 * world, 16, generator=generator), torch.randn(8 * world, 4, generator=generator)
        nn.functional.mse_loss(model(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step % args.every == 0:
            weights, states = get_state_dict(model, optimizer)
            content = {"model": weights, "optimizer": states, "scheduler": scheduler.state_dict(), "step": step}
            os.makedirs("checkpoints", exist_ok=True)
            dcp.save(content, checkpoint_id=f"checkpoints/step-{step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
