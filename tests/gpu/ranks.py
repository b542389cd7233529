"""Watched processes of a script on the device, as many as ranks, and what they recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.unit.watcher import jobs

from . import device

#: ``order(act)``: a fault for this process, that its next optimizer step takes. ``wait()``: for all work of the device.
PROLOGUE = """
import json, os, sys, time
import torch
import torch.distributed as dist

DEVICE = torch.device(os.environ["CCBED_TEST_DEVICE"])
BACKEND, OUT, RANK = os.environ["CCBED_TEST_BACKEND"], os.environ["CCBED_WATCH"], int(os.environ["RANK"])
if DEVICE.type == "cuda":
    torch.cuda.set_device(DEVICE)

def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()

def order(act):
    with open(f"{OUT}/orders-r{RANK}.jsonl", "a") as file:
        file.write(json.dumps({"act": act}) + "\\n")

def report(**values):
    print("values", json.dumps(values), flush=True)

"""


def run(
    folder: Path, text: str, *, world: int = 1, backend: str = device.BACKEND, **environment: str
) -> list[jobs.Watched]:
    """Run ``text`` after the prologue in a process for each rank; all of them end with code 0, without a problem of the watcher."""
    port = jobs.free_port()
    common: dict[str, Any] = {
        "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0",
        "CCBED_TEST_DEVICE": "cpu" if device.IS_REHEARSAL else "cuda:0", "CCBED_TEST_BACKEND": backend,
        "CCBED_WATCH_EVERY": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **environment,
    }  # fmt: skip

    def start(rank: int) -> jobs.Watched:
        own = folder / f"rank-{rank}"
        own.mkdir(parents=True)
        return jobs.run(own, PROLOGUE + text, **common, RANK=str(rank))

    with ThreadPoolExecutor(world) as pool:
        processes = list(pool.map(start, range(world)))
    assert [process.code for process in processes] == [0] * world, "\n".join(process.output for process in processes)
    assert [process.of("problem") for process in processes] == [[]] * world
    return processes


def values(process: jobs.Watched) -> dict[str, Any]:
    """What the script reported, all calls together."""
    lines = [line for line in process.output.splitlines() if line.startswith("values ")]
    return {name: value for line in lines for name, value in json.loads(line[7:]).items()}


def answers(folder: Path, rank: int = 0) -> Sequence[Mapping[str, Any]]:
    """What the process did on order."""
    return [json.loads(line) for line in (folder / f"rank-{rank}/records/acts-r{rank}.jsonl").read_text().splitlines()]
