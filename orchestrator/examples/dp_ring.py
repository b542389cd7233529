"""Train a classifier whose gradients a ring all-reduce of isend and irecv adds up; resume from a snapshot of rank 0.

torchrun --nproc-per-node 4 dp_ring.py --steps 60
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Flatten, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

BATCH = 16  # of each rank


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, default=Path("dp-ring.pt"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Sequential(Flatten(), Linear(64, 128), ReLU(), Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = load(args.checkpoint, model, optimizer)
    while step < args.steps:
        images, digits = batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(images), digits)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0 and step % args.save_every == 0:
            save(args.checkpoint, step, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


def batch(step, rank, world):
    """Noisy pictures of ten shapes. They follow from step and rank, so the step is the data position."""
    shapes = torch.randn(10, 8, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2 + step * world + rank)
    digits = torch.randint(10, (BATCH,), generator=generator)
    return shapes[digits] + torch.randn(BATCH, 8, 8, generator=generator), digits


def average_gradients(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    ring_all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))


def ring_all_reduce(flat):
    """Add up ``flat`` over all ranks. Each of n chunks goes around twice: n - 1 steps add to it, n - 1 more spread the sum."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = flat.tensor_split(world)
    for turn in range(2 * (world - 1)):
        sent, received = chunks[(rank - turn) % world], chunks[(rank - turn - 1) % world]
        arrived = torch.empty_like(received)
        sending = dist.isend(sent, (rank + 1) % world)
        dist.recv(arrived, (rank - 1) % world)
        sending.wait()
        received.copy_(received + arrived if turn < world - 1 else arrived)


def save(path, step, model, optimizer):
    """Write a temporary file and rename it: a file of that name is always complete."""
    snapshot = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(snapshot, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def load(path, model, optimizer):
    """Restore the snapshot if there is one, and return its step."""
    if not path.exists():
        return 0
    snapshot = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    return snapshot["step"]


if __name__ == "__main__":
    main()
