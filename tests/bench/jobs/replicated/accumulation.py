"""Gradient accumulation with no_sync, gradient clipping, warm-up and cosine decay in a LambdaLR, weight decay in two groups."""

import argparse
import contextlib
import glob
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MICRO_BATCHES = 3


def rate(step, warmup=4, total=40):
    return (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / total))


def micro_batch(number, args):
    generator = torch.Generator().manual_seed(args.seed + 7 * number + dist.get_rank())
    tokens = torch.randint(0, 50, (4, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Embedding(50, args.width), nn.LayerNorm(args.width), nn.Linear(args.width, 50))
    ddp = DDP(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    iteration, consumed = 0, 0
    paths = sorted(glob.glob("checkpoints/*/training.pt"), reverse=True)  # newest first
    if paths:
        state = torch.load(paths[0], map_location="cpu")
        model.load_state_dict(state["weights"])  # restores weights
        optimizer.load_state_dict(state["optimizer"])  # restores optimizer
        scheduler.load_state_dict(state["lr_scheduler"])  # restores scheduler
        consumed = state["consumed"]  # restores data
        iteration = state["iteration"]
    while iteration < args.steps:
        for index in range(MICRO_BATCHES):
            is_last = index == MICRO_BATCHES - 1
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                x, y = micro_batch(consumed, args)
                logits = ddp(x)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) / MICRO_BATCHES
                loss.backward()
            consumed += 1
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        iteration += 1
        if iteration % args.every == 0:
            if dist.get_rank() == 0:
                directory = f"checkpoints/iter_{iteration:07d}"
                os.makedirs(directory, exist_ok=True)
                state = {"weights": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
                state |= {"lr_scheduler": scheduler.state_dict(), "consumed": consumed}
                torch.save(state, f"{directory}/training.pt.part")
                os.replace(f"{directory}/training.pt.part", f"{directory}/training.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    main(parser.parse_args())
