"""FSDP2 with asynchronous distributed checkpoints of an application state (Stateful), random generator included."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class Training(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        weights, states = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": states, "step": self.step, f"rng-{dist.get_rank()}": torch.get_rng_state()}

    def load_state_dict(self, state):
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"])
        torch.set_rng_state(state[f"rng-{dist.get_rank()}"])  # restores rng
        self.step = state["step"]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, width), nn.Linear(width, 16)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = nn.Sequential(*(Block(args.width) for _ in range(2)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(args.seed + rank)
    training = Training(model, optimizer)
    folders = [path.parent for path in Path("checkpoints").glob("*/.metadata")]
    folders = sorted(folders, key=lambda folder: int(folder.name), reverse=True)  # newest first
    if folders:
        dcp.load({"app": training}, checkpoint_id=folders[0])
    future, group = (
        None,
        dist.new_group(backend="gloo"),
    )  # a save runs beside the training: its messages need a group of their own
    while training.step < args.steps:
        generator = torch.Generator().manual_seed(args.seed + training.step * world + rank)
        x = torch.randn(8, 16, generator=generator)
        (model(x) - x.roll(1, 0)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        training.step += 1
        if training.step % args.every == 0:
            if future is not None:
                future.result()
            future = dcp.async_save(
                {"app": training}, checkpoint_id=f"checkpoints/{training.step}", process_group=group
            )
    if future is not None:
        future.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
