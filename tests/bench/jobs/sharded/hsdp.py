"""HSDP: FSDP2 on a mesh of two replicas of two shards (four ranks); distributed checkpoints."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 4


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 4))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    folders = [path.parent for path in Path("checkpoints").glob("*/.metadata")]
    folders = sorted(folders, key=lambda folder: int(folder.name), reverse=True)  # newest first
    step = 0
    if folders:
        weights, states = get_state_dict(model, optimizer)
        content = {}
        content["model"] = weights  # restores weights
        content["optimizer"] = states  # restores optimizer
        dcp.load(content, checkpoint_id=folders[0])
        set_model_state_dict(model, content["model"])  # restores weights
        set_optimizer_state_dict(model, optimizer, content["optimizer"])  # restores optimizer
        step = int(folders[0].name)
    while step < args.steps:
        generator = torch.Generator().manual_seed(args.seed + step * world + rank)
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            weights, states = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": states}, checkpoint_id=f"checkpoints/{step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
