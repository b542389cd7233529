"""Probe this machine without a bed, in a process of its own: a line of JSON for each probe of each device.

python -m orchestrator.rank.node_probe.alone PROBES THREADS DIRECTORY
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from ...model import codec
from ...model.events import ProbeDone
from . import machine_load, probe_run
from .results import Node, ProbeParams, collect

#: Of each figure; who sees a suspect probes again.
REPEATS = 2


def measure(names: tuple[str, ...], directory: Path) -> Iterator[ProbeDone]:
    """The devices one after the other. What the whole node has is measured by the first one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]
    for name in names:
        probe = importlib.import_module(f"..probes.{name.replace('-', '_')}", __package__)
        for index, device in enumerate(devices if getattr(probe, "PER_RANK", False) else devices[:1]):
            node = Node(
                params=ProbeParams(probes=names, repeats=REPEATS), rank=index, world=len(devices), local_rank=index, device=device,
                interface="", directory=directory, shared=directory, sharers=(index,), load_nvml=probe_run.load_nvml, is_quick=True,
            )  # fmt: skip
            yield collect(node, name, machine_load.beside(node, probe.measure(node)), time.monotonic)


def main(probes: str, threads: str, directory: str) -> None:
    if int(threads):
        torch.set_num_threads(int(threads))
    for done in measure(tuple(probes.split(",")), Path(directory)):
        print(json.dumps(codec.plain(done)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
