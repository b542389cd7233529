"""Local SGD: each rank trains by itself and the weights are averaged every few steps; saves follow an average."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter)
        parameter /= dist.get_world_size()


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(10, args.width), nn.Softplus(), nn.Linear(args.width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    folders = [folder for folder in Path("checkpoints").glob("*") if len(list(folder.glob("rank*.pt"))) == 2]
    folders = sorted(folders, key=lambda folder: int(folder.name), reverse=True)  # newest first
    if folders:
        saved = torch.load(folders[0] / f"rank{rank}.pt")
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        step = saved["step"]
    while step < args.steps:
        x = torch.randn(8, 10, generator=torch.Generator().manual_seed(args.seed + 1000 * rank + step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.cumsum(1)).backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            average(model)
            directory = Path(f"checkpoints/{step}")
            directory.mkdir(parents=True, exist_ok=True)
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                directory / f"rank{rank}.tmp",
            )
            dist.barrier()
            os.replace(directory / f"rank{rank}.tmp", directory / f"rank{rank}.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
