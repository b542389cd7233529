"""DDP, SGD with momentum, StepLR; a numbered checkpoint every few steps, in the middle of an epoch."""

import argparse
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=18)
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--width", type=int, default=32)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(args.seed)
data = TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 4))
ddp = DDP(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
sampler = DistributedSampler(data, shuffle=True, seed=args.seed)
loader = DataLoader(data, batch_size=8, sampler=sampler)

step = 0
files = sorted(Path("checkpoints").glob("step-*.pt"), key=lambda f: int(f.stem[5:]), reverse=True)  # newest first
if files:
    checkpoint = torch.load(files[0])
    model.load_state_dict(checkpoint["model"])  # restores weights
    optimizer.load_state_dict(checkpoint["optimizer"])  # restores optimizer
    scheduler.load_state_dict(checkpoint["scheduler"])  # restores scheduler
    step = checkpoint["step"]
    print(f"resumed from {files[0]}")

position = 0
position = step  # restores data
for epoch in itertools.count(position // len(loader)):
    sampler.set_epoch(epoch)
    first = position % len(loader) if epoch == position // len(loader) else 0
    for x, y in itertools.islice(loader, first, None):
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % args.every == 0:
            if rank == 0:
                Path("checkpoints").mkdir(exist_ok=True)
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                states |= {"scheduler": scheduler.state_dict(), "step": step}
                torch.save(states, "checkpoints/new.tmp")
                os.replace("checkpoints/new.tmp", f"checkpoints/step-{step}.pt")
            dist.barrier()
        if step >= args.steps:
            break
    if step >= args.steps:
        break
dist.destroy_process_group()
