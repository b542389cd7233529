"""Mixed precision on CPU: autocast and a GradScaler whose scale is too large at first, so that it skips updates; dropout."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=18)
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--width", type=int, default=32)


def newest_files(rank):
    files = list(Path("checkpoints").glob(f"amp-*-rank{rank}.pt"))
    files = [
        file
        for file in files
        if len(list(file.parent.glob(f"amp-{file.name.split('-')[1]}-*.pt"))) == dist.get_world_size()
    ]
    files = sorted(files, key=lambda file: int(file.name.split("-")[1]), reverse=True)  # newest first
    return files[:1]


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(args.width, 4))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    torch.manual_seed(args.seed + 1000 + rank)
    done = 0
    for file in newest_files(rank):
        saved = torch.load(file)
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        scaler.load_state_dict(saved["scaler"])  # restores scaler
        torch.set_rng_state(saved["rng"])  # restores rng
        done = saved["done"]
    for step in range(done, args.steps):
        generator = torch.Generator().manual_seed(args.seed * 7919 + step * 2 + rank)
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(x).float(), y, reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if (step + 1) % args.every == 0:
            os.makedirs("checkpoints", exist_ok=True)
            parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
            saved = {name: part.state_dict() for name, part in parts.items()}
            saved |= {"rng": torch.get_rng_state(), "done": step + 1}
            dist.barrier()
            torch.save(saved, f"checkpoints/tmp-{rank}")
            os.replace(f"checkpoints/tmp-{rank}", f"checkpoints/amp-{step + 1}-rank{rank}.pt")
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
