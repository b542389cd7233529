"""Data in numpy arrays, shuffled anew each epoch by a generator of its own, whose state is saved with the position."""

import argparse
import os
import pickle
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

BATCH = 8


class Batches:
    def __init__(self, x, y, seed):
        self.x, self.y = x, y
        self.generator = np.random.default_rng(seed)
        self.order, self.position = self.generator.permutation(len(x)), 0

    def take(self):
        if self.position + BATCH > len(self.order):
            self.order, self.position = self.generator.permutation(len(self.x)), 0
        rows = self.order[self.position : self.position + BATCH]
        self.position += BATCH
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])

    def state(self):
        return {"order": self.order, "position": self.position, "generator": self.generator.bit_generator.state}

    def restore(self, state):
        self.order, self.position = state["order"], state["position"]
        self.generator.bit_generator.state = state["generator"]


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    source = np.random.default_rng(args.seed)
    x, y = source.normal(size=(60, 10)).astype(np.float32), source.integers(0, 3, 60)
    batches = Batches(x[rank::2], y[rank::2], args.seed + rank)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(10, args.width), nn.ELU(), nn.Linear(args.width, 3))
    )
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
    step = 0
    files = sorted(Path("checkpoints").glob("model-*.pt"), key=lambda f: int(f.stem[6:]), reverse=True)  # newest first
    if files:
        saved = torch.load(files[0])
        model.load_state_dict(saved["ddp"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        step = saved["step"]
        batches.restore(pickle.loads(Path(f"checkpoints/data-{step}-{rank}.pkl").read_bytes()))  # restores data
    while step < args.steps:
        inputs, labels = batches.take()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            os.makedirs("checkpoints", exist_ok=True)
            Path(f"checkpoints/data-{step}-{rank}.pkl").write_bytes(pickle.dumps(batches.state()))
            dist.barrier()
            if rank == 0:
                saved = {"ddp": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(saved, "checkpoints/model.tmp")
                os.replace("checkpoints/model.tmp", f"checkpoints/model-{step}.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
