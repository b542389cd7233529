"""Train a classifier whose gradients are added up in a ring of isend and recv; resume from a snapshot that rank 0 writes.

torchrun --nproc-per-node 4 dp_ring.py --steps 60
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint", type=Path, default=Path("dp-ring.pt"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if args.checkpoint.exists():
        snapshot = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        step = snapshot["step"]
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
    while step < args.steps:
        images, digits = batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), digits)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0 and step % 5 == 0:
            save(args.checkpoint, {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
    dist.barrier()
    dist.destroy_process_group()


def batch(step, rank, world, size=16):
    """Ten shapes with noise. They follow from step and rank, so the step is the data position."""
    shapes = torch.randn(10, 8, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2 + step * world + rank)
    digits = torch.randint(10, (size,), generator=generator)
    return shapes[digits] + torch.randn(size, 8, 8, generator=generator), digits


def average_gradients(model):
    flat = nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())
    ring_all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), [parameter.grad for parameter in model.parameters()])


def ring_all_reduce(flat):
    """Add up ``flat`` over n ranks: each of n chunks travels n - 1 turns and grows, then its sum travels n - 1 more."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = flat.tensor_split(world)
    for turn in range(2 * (world - 1)):
        own, next_own = chunks[(rank - turn) % world], chunks[(rank - turn - 1) % world]
        received = torch.empty_like(next_own)
        sending = dist.isend(own, (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        next_own.copy_(next_own + received if turn < world - 1 else received)


def save(path, snapshot):
    """Write a temporary file and rename it: a file of that name is always complete."""
    torch.save(snapshot, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


if __name__ == "__main__":
    main()
