"""A recommender: SparseAdam for the embeddings, Adam for the dense layers, both in one checkpoint."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Recommender(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.users = nn.Embedding(40, 8, sparse=True)
        self.items = nn.Embedding(60, 8, sparse=True)
        self.dense = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, users, items):
        return self.dense(torch.cat([self.users(users), self.items(items)], dim=1)).squeeze(1)


def clicks(step, seed):
    generator = torch.Generator().manual_seed(seed + 31 * step + dist.get_rank())
    users, items = torch.randint(0, 40, (8,), generator=generator), torch.randint(0, 60, (8,), generator=generator)
    return users, items, torch.rand(8, generator=generator).round()


def average_gradients(model):
    for parameter in model.parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        parameter.grad = gradient.to_sparse(1) if parameter.grad.is_sparse else gradient


def main(steps, every, seed, width):
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = Recommender(width)
    sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=0.02)
    dense = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    begin = 0
    files = sorted(Path("checkpoints").glob("*.pt"), key=lambda file: int(file.stem), reverse=True)  # newest first
    if files:
        checkpoint = torch.load(files[0])
        model.load_state_dict(checkpoint["model"])  # restores weights
        sparse.load_state_dict(checkpoint["sparse"])  # restores optimizer
        dense.load_state_dict(checkpoint["dense"])  # restores optimizer
        begin = checkpoint["step"]
    for step in range(begin, steps):
        users, items, clicked = clicks(step, seed)
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicked)
        model.zero_grad()
        loss.backward()
        average_gradients(model)
        sparse.step()
        dense.step()
        if (step + 1) % every == 0:
            if dist.get_rank() == 0:
                Path("checkpoints").mkdir(exist_ok=True)
                parts = {"model": model.state_dict(), "sparse": sparse.state_dict(), "dense": dense.state_dict()}
                torch.save({**parts, "step": step + 1}, "checkpoints/writing.tmp")
                os.replace("checkpoints/writing.tmp", f"checkpoints/{step + 1}.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
