"""The workers that a job's own launcher started on a node: by the watcher's records, as living descendants of the launcher."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import processes
from .processes import Process

#: A record's first line is shorter.
_FIRST_LINE = 1 << 16
_TICKS = os.sysconf("SC_CLK_TCK")


class Worker(NamedTuple):
    """A training process. ``rank``, ``local_rank``: as its launcher numbers it; ``number``: its pid as it knows it itself."""

    rank: int
    local_rank: int
    number: int
    began: float
    process: Process


def find(out: Path, launcher: int) -> dict[int, Worker]:
    """Local rank -> its worker. ``out``: the directory of the node's records; ``launcher``: pid of what runs the launcher.

    Of several processes with one local rank the newest counts. A process that imported no torch has no record.
    """
    living = {processes.inner_pid(process.pid): process for process in processes.descendants(launcher)}
    known = sorted(_recorded(out, living), key=lambda worker: worker.began)
    return {worker.local_rank: worker for worker in known}


def _recorded(out: Path, living: Mapping[int, Process]) -> Iterator[Worker]:
    for path in out.glob("watch-r*.jsonl"):
        with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
            begin = json.loads(file.readline(_FIRST_LINE))
            process, began = living.get(int(begin["pid"])), float(begin["t"])
            if process is not None and _is_of(process, began):
                yield Worker(int(begin["rank"]), int(begin["local_rank"]), int(begin["pid"]), began, process)


def _is_of(process: Process, began: float) -> bool:
    """Return whether a process wrote the record that began then (CLOCK_MONOTONIC): a later one has only got the same number."""
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() + began
    return process.start / _TICKS <= since_boot_s + 1.0
