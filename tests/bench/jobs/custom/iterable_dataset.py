"""An IterableDataset that streams samples and knows its own position; OneCycleLR; keeps the last two checkpoints."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, seed, rank, world):
        self.seed, self.rank, self.world, self.position = seed, rank, world, 0

    def __iter__(self):
        while True:
            number = self.position * self.world + self.rank
            generator = torch.Generator().manual_seed(self.seed + number)
            self.position += 1
            yield torch.randn(16, generator=generator), torch.randn(1, generator=generator)


def prune(keep=2):
    files = sorted(Path("checkpoints").glob("*.pt"), key=lambda file: int(file.stem))
    for file in files[:-keep]:
        file.unlink()


def load(model, optimizer, scheduler, stream):
    files = sorted(Path("checkpoints").glob("*.pt"), key=lambda file: int(file.stem), reverse=True)  # newest first
    for file in files:
        try:
            saved = torch.load(file)
        except Exception as error:
            print(f"{file} cannot be read: {error}")
            continue  # falls back
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        scheduler.load_state_dict(saved["scheduler"])  # restores scheduler
        stream.position = saved["position"]  # restores data
        return saved["step"]
    return 0


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    stream = Stream(args.seed, dist.get_rank(), dist.get_world_size())
    model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 1))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=200)
    step = load(model, optimizer, scheduler, stream)
    for x, y in DataLoader(stream, batch_size=4):
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % args.every == 0:
            if dist.get_rank() == 0:
                Path("checkpoints").mkdir(exist_ok=True)
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                saved |= {"scheduler": scheduler.state_dict(), "position": stream.position}
                torch.save(saved, f"checkpoints/{step}.pt.tmp")
                os.replace(f"checkpoints/{step}.pt.tmp", f"checkpoints/{step}.pt")
                prune()
            dist.barrier()
        if step >= args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
