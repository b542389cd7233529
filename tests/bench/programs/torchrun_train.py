"""The reference classifier as a plain torchrun script: same model, batch, optimizer and checkpoint interval as train-dp.

Each rank appends "attempt step CLOCK_MONOTONIC pid" to <dir>/marks-<rank> when it has completed a step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

LAYERS = (784, 256, 128, 64, 10)


def classifier() -> nn.Sequential:
    parts: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(LAYERS[:-1]):
        parts += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(LAYERS[-2], LAYERS[-1]), nn.LogSoftmax(dim=1))


def digits(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images = bytearray((folder / "train-images-idx3-ubyte").read_bytes()[16:])
    labels = bytearray((folder / "train-labels-idx1-ubyte").read_bytes()[8:])
    return torch.frombuffer(images, dtype=torch.uint8).view(-1, 784) / 255, torch.frombuffer(labels, dtype=torch.uint8)


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    file = folder / "checkpoint.pt"
    if not file.exists():
        return 0
    checkpoint = torch.load(file, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["step"])


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    temporary = folder / "checkpoint.tmp"
    with temporary.open("wb") as out:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(folder / "checkpoint.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    images, labels = digits(options.data)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    with (options.dir / f"marks-{rank}").open("a", buffering=1) as marks:
        for step in range(restore(options.dir, model, optimizer) + 1, options.steps + 1):
            at = (torch.arange(options.batch) + step * options.batch)[rank::world] % len(labels)
            loss = nn.functional.nll_loss(model(images[at]), labels[at].long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            flat = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
            dist.all_reduce(flat)
            sizes = [parameter.numel() for parameter in model.parameters()]
            for parameter, part in zip(model.parameters(), torch.split(flat / world, sizes), strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
            marks.write(f"{attempt} {step} {time.monotonic():.6f} {os.getpid()}\n")
            if rank == 0 and step % options.checkpoint_every == 0:
                save(options.dir, step, model, optimizer)


main()
