"""A pipeline of two stages with send and recv; each stage saves its own file, and a tracker file names the iteration."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

TRACKER = Path("checkpoints/latest_checkpointed_iteration.txt")
BATCH = 8


def forward_backward(stage, rank, x, y):
    if rank == 0:
        output = stage(x)
        dist.send(output.detach(), 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, 1)
        output.backward(gradient)
        return None
    received = torch.empty(BATCH, 12)
    dist.recv(received, 0)
    received.requires_grad_()
    loss = nn.functional.cross_entropy(stage(received), y)
    loss.backward()
    dist.send(received.grad, 0)
    return loss


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    stage = (
        nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 12)),
        nn.Sequential(nn.Linear(12, args.width), nn.ReLU(), nn.Linear(args.width, 4)),
    )[rank]
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
    iteration = 0
    if TRACKER.exists():
        iteration = int(TRACKER.read_text())
        saved = torch.load(f"checkpoints/iter_{iteration:07d}/stage_{rank}.pt")
        stage.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
    while iteration < args.steps:
        generator = torch.Generator().manual_seed(args.seed + iteration)
        x, y = torch.randn(BATCH, 16, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)
        optimizer.zero_grad()
        forward_backward(stage, rank, x, y)
        optimizer.step()
        iteration += 1
        if iteration % args.every == 0:
            directory = Path(f"checkpoints/iter_{iteration:07d}")
            directory.mkdir(parents=True, exist_ok=True)
            states = {"model": stage.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, directory / f"stage_{rank}.pt")
            dist.barrier()
            if rank == 0:
                TRACKER.with_suffix(".tmp").write_text(str(iteration))
                os.replace(TRACKER.with_suffix(".tmp"), TRACKER)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
