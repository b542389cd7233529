"""A training job of many kinds, with plain torch; ``--flaw`` breaks its resumption. It writes what is true after each step.

``truth/r<rank>.jsonl``: the step, the process, and by part what the job holds: weights, optimizer, buffers, average, lr, batch, random
state, scale, sums. Numbers, not digests, so that a comparison may allow for rounding. This file shares no code with ccbed.
"""

from __future__ import annotations

import argparse
import copy
import glob
import json
import os
import threading
import time
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

OWN_RATES = (1.0, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("model", "mlp"), ("opt", "adam"), ("sched", "none"), ("save", "whole"), ("data", "map"), ("flaw", "none"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", default=default)
    for name, value in (
        ("accum", 1),
        ("eval", 0),
        ("ema", 0),
        ("scaler", 0),
        ("sums", 0),
        ("steps", 40),
        ("every", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--sleep", type=float, default=0.02)
    return parser.parse_args()


def model_of(kind: str, dropout: float) -> nn.Module:
    middle = [nn.BatchNorm1d(24)] if kind == "bn" else [nn.LayerNorm(24)] if kind == "norm" else []
    return nn.Sequential(nn.Linear(12, 24), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(24, 4))


def optimizer_of(kind: str, model: nn.Module, decay: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=decay)
    return (torch.optim.AdamW if kind == "adamw" else torch.optim.Adam)(model.parameters(), 0.01, weight_decay=decay)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Samples by their number; each rank has every fourth one."""

    def __init__(self, begin: int, rank: int) -> None:
        self.begin, self.rank = begin, rank

    def __iter__(self) -> Any:
        for number in range(self.begin, 10**6):
            yield sample(number * 4 + self.rank)


def sample(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(12, generator=torch.Generator().manual_seed(number))
    return x, x[:4].argmax()


class Job:
    """The state of the job, and what it does at a step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(1)
        self.model = model_of(args.model, args.dropout)
        changed = args.flaw == "settings" and bool(self.files())
        self.opt = optimizer_of(args.opt, self.model, 0.02 if changed else 0.01)
        self.ema = copy.deepcopy(self.model).requires_grad_(False) if args.ema else nn.Identity()
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.steps) if args.sched == "torch" else None
        self.scale, self.sums, self.step, self.turns = 1024.0, torch.zeros(4), 0, 0
        self.generator = torch.Generator().manual_seed(77 + self.rank)
        torch.manual_seed(5 + self.rank)
        self.saving: threading.Thread | None = None
        if files := self.files():
            self.load(files)
        self.ddp = DDP(self.model)

    def files(self) -> list[str]:
        return sorted(glob.glob("ck/step-*.pt"))

    def load(self, files: list[str]) -> None:
        flaw, state = self.args.flaw, torch.load(files[-1], weights_only=False)
        rest = torch.load(files[-1].replace("step-", "rest-"), weights_only=False) if self.args.save == "two" else state
        if flaw == "mixed" and len(files) > 1:
            rest = {
                **rest,
                "opt": torch.load(
                    files[-2].replace("step-", "rest-") if self.args.save == "two" else files[-2], weights_only=False
                )["opt"],
            }
        if flaw != "weights":
            self.model.load_state_dict(state["model"])
        if flaw == "buffers":
            for module in self.model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.reset_running_stats()
        if flaw != "optimizer" and not (flaw == "rank-opt" and self.rank):
            self.opt.load_state_dict(rest["opt"])
            if flaw == "settings":
                for group in self.opt.param_groups:
                    group["weight_decay"] = 0.02
        if self.sched is not None and flaw != "sched":
            self.sched.load_state_dict(rest["sched"])
        if flaw not in ("ema-unloaded", "ema-unsaved") and "ema" in state:
            self.ema.load_state_dict(state["ema"])
        if flaw != "rng":
            torch.set_rng_state(rest["rng"][self.rank])
        if flaw != "data":
            self.generator.set_state(rest["generators"][self.rank])
        self.scale = self.scale if flaw == "scaler" else rest["scale"]
        self.sums = self.sums if flaw == "sums" else rest["sums"][self.rank]
        self.turns = 0 if flaw == "sched" else rest["turns"]
        self.step = state["step"] - (5 if flaw == "twice" else 0)

    def save(self) -> None:
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, (torch.get_rng_state(), self.generator.get_state(), self.sums.clone()))
        if self.rank == 0:
            os.makedirs("ck", exist_ok=True)
            state: dict[str, Any] = {"step": self.step, "model": self.model.state_dict()}
            if self.args.ema and self.args.flaw != "ema-unsaved":
                state["ema"] = self.ema.state_dict()
            rest = {
                "opt": self.opt.state_dict(), "sched": self.sched and self.sched.state_dict(), "rng": [s[0] for s in states],
                "generators": [s[1] for s in states], "scale": self.scale, "sums": [s[2] for s in states], "turns": self.turns,
            }  # fmt: skip
            name = f"{self.step:05d}.pt"
            if self.args.save == "two":
                write(rest, f"ck/rest-{name}")
                write(state, f"ck/step-{name}")
            elif self.args.save == "thread":
                self.wait()
                whole = copy.deepcopy({**rest, **state})
                self.saving = threading.Thread(target=write, args=(whole, f"ck/step-{name}"))
                self.saving.start()
            else:
                write({**rest, **state}, f"ck/step-{name}")
        dist.barrier()

    def wait(self) -> None:
        if self.saving is not None:
            self.saving.join()

    def train(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """One step. ``sums``: what the job keeps of its losses, and lets act at every seventh step."""
        self.opt.zero_grad()
        for x, y in batches:
            output = self.ddp(x)
            loss = nn.functional.cross_entropy(output, y)
            if self.args.sums and self.step % 7 == 6:
                loss = loss + (self.sums.mean() * 0.05) * output.square().mean()
            loss.backward()
            if self.args.sums:
                self.sums += output.detach().square().mean(0)
        self.opt.step()
        self.step += 1
        self.turns += 1
        if self.args.scaler and self.step % 6 == 0:
            self.scale /= 2
        if self.sched is not None:
            self.sched.step()
        elif self.args.sched == "own":
            for group in self.opt.param_groups:
                group["lr"] = 0.01 * OWN_RATES[min(self.turns // 4, len(OWN_RATES) - 1)]
        if self.args.ema:
            with torch.no_grad():
                for average, own in zip(self.ema.parameters(), self.model.parameters()):
                    average.lerp_(own, 0.1)

    def truth(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
        states = [v for s in self.opt.state.values() for v in s.values() if torch.is_tensor(v)]
        return {
            "weights": norm(self.model.parameters()), "optimizer": norm(states), "lr": self.opt.param_groups[0]["lr"],
            "buffers": norm(b for b in self.model.buffers() if b.is_floating_point()),
            "ema": norm(self.ema.parameters()) if self.args.ema else 0.0,
            "decay": self.opt.param_groups[0]["weight_decay"],
            "scale": self.scale if self.args.scaler else 0.0, "sums": norm([self.sums]) if self.args.sums else 0.0,
            "batch": zlib.crc32(b"".join(x.numpy().tobytes() for x, _ in batches)),
            "rng": zlib.crc32(bytes(torch.get_rng_state().tolist())) if self.args.dropout else 0,
        }  # fmt: skip


def norm(tensors: Any) -> float:
    return float(
        sum((t.detach().double().abs() * torch.linspace(1, 2, max(t.numel(), 1)).view_as(t)).sum() for t in tensors)
    )


def write(value: Any, path: str) -> None:
    torch.save(value, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def batches_of(job: Job) -> Any:
    """Lists of batches, one list for each step, from where the job is."""
    args, begin = job.args, job.step * job.args.accum
    if args.flaw == "data" and job.step:
        begin = 0
    if args.data == "drawn":
        while True:
            yield [drawn(job.generator) for _ in range(args.accum)]
    if args.data == "stream":
        loader = iter(DataLoader(Stream(begin * 8, job.rank), batch_size=8, generator=torch.Generator()))
        while True:
            yield [next(loader) for _ in range(args.accum)]
    samples = [sample(number) for number in range(512)]
    data = TensorDataset(torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples]))
    sampler = DistributedSampler(data, seed=3)  # type: ignore[var-annotated]
    loader = DataLoader(data, batch_size=8, sampler=sampler, generator=torch.Generator())  # the seed for workers
    kept: list[Any] = []
    number = 0
    for epoch in range(10**6):
        sampler.set_epoch(epoch)
        if number + len(loader) <= begin:
            number += len(loader)
            continue
        for batch in loader:
            number += 1
            if number <= begin:
                continue
            kept.append(batch)
            if len(kept) == args.accum:
                yield kept
                kept = []


def drawn(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 12, generator=generator)
    return x, x[:, :4].argmax(-1)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = Job(args)
    os.makedirs("truth", exist_ok=True)
    held_out = DataLoader(
        TensorDataset(torch.stack([sample(n)[0] for n in range(900, 916)])), batch_size=8, generator=torch.Generator()
    )
    stream = batches_of(job)
    with open(f"truth/r{job.rank}.jsonl", "a", buffering=1) as out:
        while job.step < args.steps:
            if args.eval and job.step % 4 == 2:
                job.model.eval()
                with torch.no_grad():
                    for (x,) in held_out:
                        job.model(x)
                job.model.train()
            batches = next(stream)
            job.train(batches)
            out.write(json.dumps({"step": job.step, "pid": os.getpid(), **job.truth(batches)}) + "\n")
            if job.step % args.every == 0:
                job.save()
            time.sleep(args.sleep)
    job.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
