"""A loader with state_dict and load_state_dict; it shuffles once an epoch with torch's global generator, which is saved."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class StatefulLoader:
    """Batches of a tensor in an order that is drawn at the beginning of each epoch."""

    def __init__(self, tensor, batch):
        self.tensor, self.batch, self.order, self.index = tensor, batch, None, 0

    def __iter__(self):
        while True:
            if self.order is None:
                self.order, self.index = torch.randperm(len(self.tensor)), 0
            while self.index < len(self.order) // self.batch:
                self.index += 1
                yield self.tensor[self.order[(self.index - 1) * self.batch : self.index * self.batch]]
            self.order = None

    def state_dict(self):
        return {"order": self.order, "index": self.index}

    def load_state_dict(self, state):
        self.order, self.index = state["order"], state["index"]


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(12, args.width), nn.Linear(args.width, 4), nn.Linear(4, 12))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.01)
    loader = StatefulLoader(torch.randn(48, 12) + rank, 8)
    torch.manual_seed(args.seed + rank)
    step = 0
    files = list(Path("checkpoints").glob(f"*-of-rank-{rank}.pt"))
    files = [file for file in files if file.with_name(file.name.replace(f"rank-{rank}", f"rank-{1 - rank}")).exists()]
    files = sorted(files, key=lambda file: int(file.name.split("-")[0]), reverse=True)  # newest first
    if files:
        saved = torch.load(files[0])
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        loader.load_state_dict(saved["loader"])  # restores data
        torch.set_rng_state(saved["rng"])  # restores rng
        step = saved["step"]
    for batch in loader:
        if step == args.steps:
            break
        ddp.zero_grad()
        nn.functional.l1_loss(ddp(batch), batch).backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            Path("checkpoints").mkdir(exist_ok=True)
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            saved |= {"loader": loader.state_dict(), "rng": torch.get_rng_state()}
            torch.save(saved, f"checkpoints/tmp-{rank}")
            dist.barrier()
            os.replace(f"checkpoints/tmp-{rank}", f"checkpoints/{step}-of-rank-{rank}.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
