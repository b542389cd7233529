"""The optimizer runs in the backward pass: one per parameter, called as soon as its gradient is there and averaged."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def step_in_backward(model):
    optimizers = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}

    def update(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return list(optimizers.values())


def restore(optimizers, states):
    for optimizer, state in zip(optimizers, states):
        optimizer.load_state_dict(state)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(12, args.width), nn.SiLU(), nn.Linear(args.width, 12))
    optimizers = step_in_backward(model)
    done = 0
    files = sorted(Path("checkpoints").glob("s*.pt"), key=lambda f: int(f.stem[1:]), reverse=True)  # newest first
    if files:
        saved = torch.load(files[0])
        model.load_state_dict(saved["model"])  # restores weights
        restore(optimizers, saved["optimizers"])  # restores optimizer
        done = saved["done"]
    while done < args.steps:
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(args.seed + done * 17 + rank))
        nn.functional.mse_loss(model(x), x.roll(1, dims=1)).backward()
        done += 1
        if done % args.every == 0:
            if rank == 0:
                Path("checkpoints").mkdir(exist_ok=True)
                states = [optimizer.state_dict() for optimizer in optimizers]
                torch.save({"model": model.state_dict(), "optimizers": states, "done": done}, "checkpoints/tmp")
                os.replace("checkpoints/tmp", f"checkpoints/s{done}.pt")
            dist.barrier()
    dist.destroy_process_group()


parser = argparse.ArgumentParser()
for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
    parser.add_argument(f"--{name}", type=int, default=default)
main(parser.parse_args())
