"""Checks that the buffers of a measurement fit into the memory of the hosts, before any rank allocates them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ...model import free_memory, requirements
from ...rank.exchange import cases
from ...rank.runtime import recorder
from . import memory_demand

#: By rank: (checksum of the memory's owner, bytes that the rank needs, bytes that are free).
Reports = Sequence[Sequence[float]]


class TooLarge(Exception):
    """A case needs more memory than is free."""

    kind = "memory"


def require(
    wanted: Iterable[Sequence[cases.Case]], rank: int, world: int, device: torch.device, spare: int = 0
) -> None:
    """Raises TooLarge on every rank if a rank lacks memory. ``wanted``: cases whose buffers exist at the same time.

    ``spare``: bytes in addition to the cases. A collective.
    """
    largest = max(wanted, key=lambda among: memory_demand.need(among, rank), default=None)
    needed = float(memory_demand.need(largest, rank) if largest else 0) + spare
    report = [part for owner, free in _free(rank, device) for part in (owner, needed, free)]
    reports = _gather(report, world, device)
    where = ("on one GPU",) if device.type == "cuda" else ("on one host", "in one container")
    problems = (
        shortage([line[3 * index : 3 * index + 3] for line in reports], text) for index, text in enumerate(where)
    )
    if largest and (problem := next(filter(None, problems), "")):
        raise TooLarge(f"{memory_demand.label(largest)}: {problem}")


def shortage(reports: Reports, where: str) -> str:
    """The first shortage of memory as a sentence; empty if there is none. Ranks with the same owner share its memory."""
    for owner, _, free in reports:
        needs = [needed for other, needed, _ in reports if other == owner]
        if sum(needs) > free:
            ranks = [rank for rank, (other, *_) in enumerate(reports) if other == owner]
            named = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"{len(ranks)} ranks from rank {ranks[0]} on need"
            return f"{named} {requirements.size_text(sum(needs))} {where}, {requirements.size_text(free)} are free"
    return ""


def _gather(report: list[float], world: int, device: torch.device) -> Reports:
    row = torch.tensor(report, dtype=torch.float64, device=device)
    if world == 1:
        return [report]
    rows = [torch.zeros_like(row) for _ in range(world)]
    dist.all_gather(rows, row)
    return [row.tolist() for row in rows]


def _free(rank: int, device: torch.device) -> list[tuple[float, float]]:
    """(owner, free bytes) of the rank's GPU; or of its host, the same in all containers, and of its container."""
    if device.type == "cuda":
        return [(float(rank), float(torch.cuda.mem_get_info(device)[0]))]
    boot, groups = recorder.boot_id(), recorder.read("/proc/self/cgroup")
    container = f"{boot}{groups}{Path('/proc/self/ns/cgroup').readlink()}"
    known = free_memory.available_on_host(recorder.read), free_memory.available_in_cgroup(recorder.read)
    free = [math.inf if size is None else float(size) for size in known]
    return [(float(zlib.crc32(owner.encode())), size) for owner, size in zip((boot, container), free, strict=True)]
