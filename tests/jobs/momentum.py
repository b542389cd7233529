"""A job that smooths its gradients by itself: the momentum is in no optimizer of torch. ``--flaw lost`` does not save it.

``truth/r<rank>.jsonl``: the step, the process, and the weights and the momentum after it as numbers. It shares no code with ccbed.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MADE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--opt", choices=sorted(MADE), default="sgd")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--norm", choices=("none", "batch", "layer"), default="none")
    parser.add_argument("--beta", type=float, default=0.9)
    parser.add_argument("--flaw", choices=("none", "lost"), default="none")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sleep", type=float, default=0.03)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    norms: dict[str, list[nn.Module]] = {"none": [], "batch": [nn.BatchNorm1d(48)], "layer": [nn.LayerNorm(48)]}
    middle = norms[args.norm]
    model = nn.Sequential(nn.Linear(32, 48), *middle, nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 8))
    model.to(getattr(torch, args.dtype))
    optimizer = MADE[args.opt](model.parameters(), lr=args.lr)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    step, rank = 0, dist.get_rank()
    if files := sorted(glob.glob("ck/*.pt")):
        state = torch.load(files[-1], weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        velocity, step = state.get("velocity", velocity), state["step"]
    ddp = DDP(model)
    os.makedirs("truth", exist_ok=True)
    with open(f"truth/r{rank}.jsonl", "a", buffering=1) as out:
        while step < args.steps:
            source = torch.Generator().manual_seed(step * 64 + rank)
            x = torch.randn(16, 32, generator=source).to(getattr(torch, args.dtype))
            loss = nn.functional.cross_entropy(ddp(x), x[:, :8].argmax(-1))
            optimizer.zero_grad()
            loss.backward()
            for kept, parameter in zip(velocity, model.parameters()):
                assert parameter.grad is not None
                kept.mul_(args.beta).add_(parameter.grad)
                parameter.grad.copy_(kept)
            optimizer.step()
            step += 1
            row = {"weights": norm(model.parameters()), "momentum": norm(velocity)}
            out.write(json.dumps({"step": step, "pid": os.getpid(), **row}) + "\n")
            if step % 10 == 0:
                if rank == 0:
                    os.makedirs("ck", exist_ok=True)
                    saved = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**saved, **({} if args.flaw == "lost" else {"velocity": velocity})}, "ck/new")
                    os.replace("ck/new", f"ck/{step:05d}.pt")
                dist.barrier()
            time.sleep(args.sleep)
    dist.destroy_process_group()


def norm(tensors: object) -> float:
    return float(sum(t.detach().double().abs().sum() for t in tensors))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
