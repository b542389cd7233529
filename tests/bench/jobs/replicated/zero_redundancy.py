"""ZeroRedundancyOptimizer: each rank holds the states of its share of the parameters; rank 0 collects and saves them."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def batch_of(step, seed, rank):
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 101 + rank)
    return torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def save(step, model, optimizer):
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        os.makedirs("checkpoints", exist_ok=True)
        target = f"checkpoints/zero-{step:06d}.pt"
        torch.save({"step": step, "model": model.state_dict(), "optim": optimizer.state_dict()}, target + ".tmp")
        os.rename(target + ".tmp", target)
    dist.barrier()


def load(model, optimizer):
    files = sorted(Path("checkpoints").glob("zero-*.pt"), reverse=True)  # newest first
    if not files:
        return 0
    checkpoint = torch.load(files[0], weights_only=False)
    model.load_state_dict(checkpoint["model"])  # restores weights
    optimizer.load_state_dict(checkpoint["optim"])  # restores optimizer
    return checkpoint["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(16, args.width), nn.Tanh(), nn.Linear(args.width, args.width), nn.Linear(args.width, 4)
    )
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    start = load(model, optimizer)
    for step in range(start, args.steps):
        position = step - start
        position = step  # restores data
        x, y = batch_of(position, args.seed, dist.get_rank())
        ddp.zero_grad()
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        if (step + 1) % args.every == 0:
            save(step + 1, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
