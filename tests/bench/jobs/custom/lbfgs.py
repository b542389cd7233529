"""L-BFGS with a closure that averages the gradients by all_reduce; no DDP; one file per rank, the same on all."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def has_all_ranks(file, world):
    return all(file.with_name(f"{file.name.split('.')[0]}.{rank}.pt").exists() for rank in range(world))


def fit(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x = torch.randn(64, 8)
    y = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3, history_size=5)
    step = 0
    files = [f for f in Path("checkpoints").glob(f"lbfgs-*.{rank}.pt") if has_all_ranks(f, world)]
    files = sorted(files, key=lambda file: int(file.name.split(".")[0][6:]), reverse=True)  # newest first
    if files:
        saved = torch.load(files[0], weights_only=False)
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        step = saved["step"]

    def closure():
        optimizer.zero_grad()
        rows = slice((step * 8) % 64, (step * 8) % 64 + 32)
        loss = nn.functional.mse_loss(model(x[rows][rank::world]), y[rows][rank::world])
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        dist.all_reduce(loss.detach_())
        return loss

    while step < args.steps:
        optimizer.step(closure)
        step += 1
        if step % args.every == 0:
            os.makedirs("checkpoints", exist_ok=True)
            target = f"checkpoints/lbfgs-{step}.{rank}.pt"
            dist.barrier()
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, target + ".tmp"
            )
            os.replace(target + ".tmp", target)
            dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    dist.init_process_group("gloo")
    fit(parser.parse_args())
    dist.destroy_process_group()
