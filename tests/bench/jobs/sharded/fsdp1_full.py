"""FSDP1 (FullyShardedDataParallel); rank 0 saves full state dicts of model and optimizer with torch.save."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def full_states(model):
    weights, states = FullStateDictConfig(rank0_only=False), FullOptimStateDictConfig(rank0_only=False)
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, weights, states)


def save(step, model, optimizer):
    with full_states(model):
        content = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer), "step": step}
    if dist.get_rank() == 0:
        os.makedirs("checkpoints", exist_ok=True)
        torch.save(content, f"checkpoints/full-{step}.pt.tmp")
        os.replace(f"checkpoints/full-{step}.pt.tmp", f"checkpoints/full-{step}.pt")
    dist.barrier()


def load(model, optimizer):
    files = Path("checkpoints").glob("full-*.pt")
    files = sorted(files, key=lambda file: int(file.stem[5:]), reverse=True)  # newest first
    if not files:
        return 0
    content = torch.load(files[0])
    with full_states(model):
        model.load_state_dict(content["model"])  # restores weights
        states = FSDP.optim_state_dict_to_load(model, optimizer, content["optimizer"])
        optimizer.load_state_dict(states)  # restores optimizer
    return content["step"]


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.Linear(args.width, 4)
    )
    model = FSDP(
        model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True, device_id=torch.device("cpu")
    )
    # on CPU the full state dict of torch 2.13 gives one buffer to all states of a parameter, so not Adam
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = load(model, optimizer)
    while step < args.steps:
        generator = torch.Generator().manual_seed(args.seed + step * 10 + dist.get_rank())
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        step += 1
        if step % args.every == 0:
            save(step, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
