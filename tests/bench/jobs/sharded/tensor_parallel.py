"""Tensor parallelism: the two layers of an MLP are split by columns and rows; distributed checkpoints of DTensors."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(16, width), nn.Linear(width, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def main(args):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(args.seed)
    model = parallelize_module(MLP(args.width), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=30)
    folders = [path.parent for path in Path("checkpoints").glob("*/.metadata")]
    folders = sorted(folders, key=lambda folder: int(folder.name), reverse=True)  # newest first
    step = 0
    if folders:
        weights, states = get_state_dict(model, optimizer)
        content = {"scheduler": scheduler.state_dict()}
        content["model"] = weights  # restores weights
        content["optimizer"] = states  # restores optimizer
        dcp.load(content, checkpoint_id=folders[0])
        set_model_state_dict(model, content["model"])  # restores weights
        set_optimizer_state_dict(model, optimizer, content["optimizer"])  # restores optimizer
        scheduler.load_state_dict(content["scheduler"])  # restores scheduler
        step = int(folders[0].name)
    while step < args.steps:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(args.seed + step))
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % args.every == 0:
            weights, states = get_state_dict(model, optimizer)
            content = {"model": weights, "optimizer": states, "scheduler": scheduler.state_dict()}
            dcp.save(content, checkpoint_id=f"checkpoints/{step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
