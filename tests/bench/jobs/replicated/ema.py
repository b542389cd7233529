"""An exponential moving average of the weights (AveragedModel) beside the model; evaluation uses the average."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FILE = "checkpoints/last.ckpt"


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3)
        self.head = nn.Linear(4 * 14, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        return self.out(torch.relu(self.head(torch.relu(self.convolution(x.unsqueeze(1))).flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    inputs, labels = torch.randn(64, 16), torch.randint(0, 3, (64,))
    net = Net(args.width)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ddp = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    done = 0
    if os.path.exists(FILE):
        saved = torch.load(FILE)
        net.load_state_dict(saved["net"])  # restores weights
        averaged.load_state_dict(saved["ema"])  # restores ema
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        done = saved["done"]
    while done < args.steps:
        rows = torch.arange(8) * world + rank + done * 8
        ddp.zero_grad()
        nn.functional.cross_entropy(ddp(inputs[rows % 64]), labels[rows % 64]).backward()
        optimizer.step()
        averaged.update_parameters(net)
        done += 1
        if done % args.every == 0:
            if rank == 0:
                os.makedirs("checkpoints", exist_ok=True)
                states = {"net": net.state_dict(), "ema": averaged.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "done": done}, FILE + ".new")
                os.replace(FILE + ".new", FILE)
            dist.barrier()
    with torch.no_grad():
        print("evaluation", float((averaged(inputs).argmax(1) == labels).float().mean()))
    dist.destroy_process_group()


main()
