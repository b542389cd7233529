"""Rotation: last.pt, last.1.pt and last.2.pt; each save renames the older ones. Files that cannot be read are passed over."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

DIRECTORY, KEPT = "checkpoints", 3


def path_of(age):
    return os.path.join(DIRECTORY, f"last.{age}.pt")


def rotate_and_save(content):
    os.makedirs(DIRECTORY, exist_ok=True)
    temporary = os.path.join(DIRECTORY, "incoming.tmp")
    with open(temporary, "wb") as stream:
        torch.save(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    for age in range(KEPT - 1, 0, -1):
        if os.path.exists(path_of(age - 1)):
            os.replace(path_of(age - 1), path_of(age))
    os.replace(temporary, path_of(0))


def read_newest():
    for path in [path_of(age) for age in range(KEPT)]:
        try:
            return torch.load(path, weights_only=False)
        except (OSError, RuntimeError, EOFError):
            continue  # falls back
    return None


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Bilinear(8, 8, args.width)
    head = nn.Linear(args.width, 2)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adadelta(parameters, lr=0.5)
    np.random.seed(args.seed + rank)
    step = 0
    content = read_newest()
    if content:
        model.load_state_dict(content["model"])  # restores weights
        head.load_state_dict(content["head"])  # restores weights
        optimizer.load_state_dict(content["optimizer"])  # restores optimizer
        np.random.set_state(content["numpy"][rank])  # restores rng
        step = content["step"]
    for step in range(step + 1, args.steps + 1):
        pair = torch.tensor(np.random.randn(2, 8, 8), dtype=torch.float32)
        labels = torch.tensor(np.random.randint(0, 2, 8))
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(model(pair[0], pair[1])), labels).backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if step % args.every == 0:
            states = [None] * dist.get_world_size()
            dist.all_gather_object(states, np.random.get_state())
            if rank == 0:
                content = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": optimizer.state_dict()}
                rotate_and_save({**content, "numpy": states, "step": step})
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
