"""Several files per checkpoint in a directory of its own, and a file ``latest`` that names the directory to resume from."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

ROOT = Path("checkpoints")


def save(tag, model, optimizer, scheduler, extra):
    directory = ROOT / tag
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), directory / "model.pt")
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    torch.save(scheduler.state_dict(), directory / "scheduler.pt")
    torch.save(extra, directory / "extra.pt")
    (ROOT / "latest.tmp").write_text(tag)
    os.replace(ROOT / "latest.tmp", ROOT / "latest")


def load(model, optimizer, scheduler):
    if not (ROOT / "latest").exists():
        return 0
    directory = ROOT / (ROOT / "latest").read_text()
    model.load_state_dict(torch.load(directory / "model.pt"))  # restores weights
    optimizer.load_state_dict(torch.load(directory / "optimizer.pt"))  # restores optimizer
    scheduler.load_state_dict(torch.load(directory / "scheduler.pt"))  # restores scheduler
    return torch.load(directory / "extra.pt")["step"]


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.TransformerEncoderLayer(16, 2, args.width, dropout=0.0, batch_first=True)
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    step = load(model, optimizer, scheduler)
    while step < args.steps:
        x = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(args.seed + step * 2 + rank))
        loss = (ddp(x) - x.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % args.every == 0:
            if rank == 0:
                save(f"global_step{step}", model, optimizer, scheduler, {"step": step})
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
