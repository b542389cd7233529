"""What the watcher costs: step time watched / not watched in interleaved pairs, and its own share of the CPU time.

python tests/bench/watcher_cost.py [PAIRS [PAIRS_OF_SHORT_STEPS]]

Every run is a process forked from this one, which has imported torch; each rank is pinned to one core. The order of a pair
alternates (ABBA). A time is the mean over all steps after the warm-up, so it includes the steps whose state is recorded.
"""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.rank.watcher import install

#: Steps at the beginning that do not count: the watcher looks for the model, and chooses k.
WARM_UP = 20


@dataclass(frozen=True)
class Row:
    """A transformer of ``layers`` layers; with two ranks under DDP."""

    name: str
    width: int
    layers: int
    batch: int
    steps: int
    world: int = 1


MAIN = Row("one rank", 128, 4, 8, 140)
SHORT = (
    Row("one rank, short steps", 64, 4, 8, 240),
    Row("one rank, shorter steps", 16, 2, 4, 600),
    Row("DDP, 2 ranks", 64, 4, 8, 240, 2),
    Row("DDP, 2 ranks, short steps", 16, 2, 4, 600, 2),
)


@dataclass(frozen=True)
class Timing:
    """Of the first rank: mean CPU time of a step, its mean and median time, and the watcher's own CPU time, in seconds."""

    cpu_s: float
    step_s: float
    median_s: float
    own_s: float


def measure(row: Row, folder: Path, *, is_watched: bool) -> Timing:
    """Run the row in new processes."""
    records = folder / "records"
    shutil.rmtree(records, ignore_errors=True)
    records.mkdir()
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    port = _free_port()
    ranks = [
        context.Process(target=_train, args=(row, rank, port, str(records) if is_watched else "", results))
        for rank in range(row.world)
    ]
    for process in ranks:
        process.start()
    cpu_s, step_s, median_s = results.get()
    for process in ranks:
        process.join()
    return Timing(cpu_s, step_s, median_s, _own_s(records) if is_watched else 0.0)


def _train(row: Row, rank: int, port: int, records: str, results: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1 - rank % len(cores)]})
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(row.world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if records:
        install.install(records, via="bench")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(row.width, 4, 4 * row.width, dropout=0.1, batch_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, row.layers)
    if row.world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    times = _run_steps(row, model)
    if rank == 0:
        results.put(times)
    if row.world > 1:
        torch.distributed.destroy_process_group()
    os._exit(0)


def _run_steps(row: Row, model: nn.Module) -> tuple[float, float, float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, row.steps)
    data = DataLoader(TensorDataset(torch.randn(row.batch * row.steps, 32, row.width)), batch_size=row.batch)
    ends, used = [], []
    for (batch,) in data:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        ends.append(time.monotonic())
        used.append(time.process_time())
    steps = [end - begin for begin, end in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    return (used[-1] - used[WARM_UP]) / len(steps), statistics.mean(steps), statistics.median(steps)


def _own_s(records: Path) -> float:
    """The watcher's CPU time of a step after the warm-up, by its own account."""
    path = next(iter(records.glob("watch-r0-*")))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in lines if line["k"] == "step" and "watcher_cpu_s" in line]
    first, last = steps[WARM_UP], steps[-1]
    return float((last["watcher_cpu_s"] - first["watcher_cpu_s"]) / (last["n"] - first["n"]))


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def upper_bound(ratios: list[float]) -> float:
    """The upper end of the 95 % interval of the median, by bootstrap."""
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[int(0.975 * len(medians))]


def report(row: Row, pairs: int, folder: Path) -> None:
    """Measure and print one row."""
    watched: list[Timing] = []
    bare: list[Timing] = []
    for number in range(pairs):
        for is_watched in (True, False) if number % 2 else (False, True):
            (watched if is_watched else bare).append(measure(row, folder, is_watched=is_watched))
    ratios = {
        "mean time": [observed.step_s / alone.step_s for observed, alone in zip(watched, bare, strict=True)],
        "median time": [observed.median_s / alone.median_s for observed, alone in zip(watched, bare, strict=True)],
        "CPU time": [observed.cpu_s / alone.cpu_s for observed, alone in zip(watched, bare, strict=True)],
    }
    step_ms = 1e3 * statistics.median(timing.median_s for timing in bare)
    shares = [timing.own_s / timing.cpu_s for timing in watched]
    own_us = 1e6 * statistics.median(timing.own_s for timing in watched)
    print(f"{row.name}: step {step_ms:.1f} ms, {pairs} pairs, load {os.getloadavg()[0]:.1f}")
    for name, values in ratios.items():
        print(
            f"  {name:12} watched / not: median {statistics.median(values):.3f}, upper 95 % bound {upper_bound(values):.3f}"
        )
    print(
        f"  own CPU time: {own_us:.0f} us a step, median {statistics.median(shares):.2%}, largest {max(shares):.2%}",
        flush=True,
    )


def main() -> None:
    pairs, short = (int(value) for value in (*sys.argv[1:], *("20", "4")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # the first optimizer imports it
    with tempfile.TemporaryDirectory() as folder:
        if pairs:
            report(MAIN, pairs, Path(folder))
        for row in SHORT if short else ():
            report(row, short, Path(folder))


if __name__ == "__main__":
    main()
