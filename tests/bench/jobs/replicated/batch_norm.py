"""BatchNorm: running means and variances are buffers; DDP sends those of rank 0 to all ranks before each forward pass."""

import argparse
import itertools
import os
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shapes(Dataset):
    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return 80

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        return torch.randn(3, 8, 8, generator=generator), index % 5


def newest_checkpoint():
    names = os.listdir("checkpoints") if os.path.isdir("checkpoints") else []
    names = [name for name in names if re.fullmatch(r"model_\d+\.pth", name)]
    names = sorted(names, key=lambda name: int(name[6:-4]), reverse=True)  # newest first
    return os.path.join("checkpoints", names[0]) if names else None


def restore(path, model, optimizer):
    state = torch.load(path, weights_only=True)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items() if "running" in name}
    model.load_state_dict(state["model"])  # restores weights
    fresh = {}  # restores buffers
    model.load_state_dict(fresh, strict=False)
    optimizer.load_state_dict(state["optimizer"])  # restores optimizer
    return state["iteration"]


def main(args):
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, args.width),
        nn.Linear(args.width, 5),
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    path = newest_checkpoint()
    iteration = restore(path, model, optimizer) if path else 0
    ddp = nn.parallel.DistributedDataParallel(model)
    dataset = Shapes(args.seed)
    sampler = DistributedSampler(dataset, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    first_epoch, offset = divmod(iteration, len(loader))
    for epoch in range(first_epoch, 100):
        sampler.set_epoch(epoch)
        for images, labels in itertools.islice(loader, offset, None):
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(images), labels).backward()
            optimizer.step()
            iteration += 1
            if iteration % args.every == 0 and dist.get_rank() == 0:
                os.makedirs("checkpoints", exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
                torch.save(state, "checkpoints/.writing.tmp")
                os.replace("checkpoints/.writing.tmp", f"checkpoints/model_{iteration}.pth")
            if iteration == args.steps:
                return
        offset = 0


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=18)
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--width", type=int, default=32)
dist.init_process_group("gloo")
main(parser.parse_args())
dist.barrier()
dist.destroy_process_group()
