"""A training script with checkpoints as people write them, in many configurations; ``--forget`` makes its resumption wrong."""

import argparse
import itertools
import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}
SCHEDULERS = {
    "none": lambda o: None,
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.7),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=40),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + 0.1 * step)),
    "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=60),
}


def make_model(kind):
    if kind == "bn":
        return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    if kind == "dropout":
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


class FromStep(torch.utils.data.Sampler):
    """Batches of indices of one rank, from a step on; the step alone determines them."""

    def __init__(self, size, batch, rank, world, first):
        self.size, self.batch, self.rank, self.world, self.first = size, batch, rank, world, first

    def __iter__(self):
        for step in itertools.count(self.first):
            generator = torch.Generator().manual_seed(1000 + step)
            order = torch.randperm(self.size, generator=generator).tolist()
            yield order[self.rank * self.batch : (self.rank + 1) * self.batch]


def batches(args, dataset, rank, world, first):
    """(x, y) of every step, from the first on."""
    if args.data == "step":
        yield from DataLoader(
            dataset, batch_sampler=FromStep(len(dataset), 8, rank, world, first), generator=torch.Generator()
        )
    elif args.data == "epoch":
        sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=5)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler, generator=torch.Generator())
        for epoch in itertools.count(first // len(loader)):
            sampler.set_epoch(epoch)
            yield from itertools.islice(loader, first % len(loader) if epoch == first // len(loader) else 0, None)
    elif args.data == "torch":
        while True:
            yield torch.randn(8, 16), torch.randint(0, 4, (8,))
    elif args.data == "numpy":
        while True:
            yield torch.tensor(np.random.randn(8, 16), dtype=torch.float32), torch.tensor(np.random.randint(0, 4, 8))
    else:
        while True:
            rows = random.sample(range(len(dataset)), 8)
            yield dataset[rows]


def generators():
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}


def restore_generators(states):
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])


def checkpoints(args):
    """The files that can be loaded, newest first."""
    files = sorted(Path("checkpoints").glob("step-*.pt"), key=lambda f: int(f.stem.split("-")[1]), reverse=True)
    if args.saves != "numbered":
        files = [f for f in [Path("checkpoints/last.pt")] if f.exists()]
    return files[1:] if "newest" in args.forget else files


def save(args, step, parts, rank):
    directory = Path("checkpoints")
    directory.mkdir(exist_ok=True)
    torch.save(generators(), directory / f"rng-{step}-{rank}.tmp")
    os.replace(directory / f"rng-{step}-{rank}.tmp", directory / f"rng-{step}-{rank}.pt")
    dist.barrier()  # rank 0's file makes the checkpoint complete
    if rank == 0:
        name = f"step-{step}.pt" if args.saves == "numbered" else "last.pt"
        content = {"step": step, **{name: part.state_dict() for name, part in parts.items() if part is not None}}
        if args.saves == "inplace":
            torch.save(content, directory / name)
        else:
            torch.save(content, directory / f"{name}.tmp")
            os.replace(directory / f"{name}.tmp", directory / name)
    dist.barrier()


def load(args, parts, rank):
    """The step that was restored; 0 if there was no checkpoint."""
    for file in checkpoints(args):
        try:
            content = torch.load(file, weights_only=False)
        except Exception as error:  # noqa: BLE001 whatever a damaged file raises
            print(f"{file}: {error}", flush=True)
            if "fallback" in args.forget:
                return 0
            continue
        for name, part in parts.items():
            if part is not None and name not in args.forget and not ("ranks" in args.forget and rank):
                part.load_state_dict(content[name])
        if "rng" not in args.forget:
            restore_generators(torch.load(f"checkpoints/rng-{content['step']}-{rank}.pt", weights_only=False))
        return content["step"]
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--scheduler", default="none")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--data", default="step")
    parser.add_argument("--saves", default="numbered")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--forget", action="append", default=[])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    dataset = TensorDataset(torch.randn(96, 16, generator=generator), torch.randint(0, 4, (96,), generator=generator))
    model = make_model(args.model)
    ddp = DistributedDataParallel(model)
    torch.manual_seed(100 + rank), random.seed(100 + rank), np.random.seed(100 + rank)
    optimizer = OPTIMIZERS[args.optimizer](ddp.parameters())
    scheduler = SCHEDULERS[args.scheduler](optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3) if args.scaler else None
    parts = {"weights": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    first = load(args, parts, rank)
    source = batches(args, dataset, rank, world, 0 if "data" in args.forget else first * args.accumulate)
    for step in range(first + 1, args.steps + 1):
        optimizer.zero_grad()
        for _ in range(args.accumulate):
            x, y = next(source)
            loss = nn.functional.cross_entropy(ddp(x), y) / args.accumulate
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if scheduler:
            scheduler.step()
        if step % args.every == 0:
            save(args, step, parts, rank)
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
