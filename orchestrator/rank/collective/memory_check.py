"""Whether the buffers of a measurement fit into the memory of the hosts: asked of all ranks before any of them is made."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ...model import free_memory
from . import cases, memory_demand

#: (where the memory is, bytes that a rank needs there, bytes that are free there), by rank.
Told = Sequence[Sequence[float]]


class TooLarge(Exception):
    """A case needs more memory than there is."""

    kind = "memory"


def require(wanted: Iterable[cases.Case], rank: int, world: int, device: torch.device, spare: int = 0) -> None:
    """A collective of all ranks. Raises TooLarge on every rank where one lacks the memory. ``spare``: bytes beside the cases'."""
    largest = max(cases.turns(tuple(wanted)), key=lambda among: memory_demand.need(among, rank), default=None)
    needed = float(memory_demand.need(largest, rank) if largest else 0) + spare
    told = _gathered([part for place, free in _free(rank, device) for part in (place, needed, free)], world, device)
    where = ("on one GPU",) if device.type == "cuda" else ("on one host", "in one container")
    problems = (lack([line[3 * at : 3 * at + 3] for line in told], text) for at, text in enumerate(where))
    if largest and (problem := next(filter(None, problems), "")):
        raise TooLarge(f"{memory_demand.label(largest)}: {problem}")


def lack(told: Told, where: str) -> str:
    """Where memory is wanting, and how much; empty: nowhere. Ranks at one place share what is free there."""
    for place, _, free in told:
        there = [needed for at, needed, _ in told if at == place]
        if sum(there) > free:
            ranks = [rank for rank, (at, *_) in enumerate(told) if at == place]
            named = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"{len(ranks)} ranks from rank {ranks[0]} on need"
            return f"{named} {free_memory.format_bytes(sum(there))} {where}, {free_memory.format_bytes(free)} are free"
    return ""


def _gathered(mine: list[float], world: int, device: torch.device) -> Told:
    line = torch.tensor(mine, dtype=torch.float64, device=device)
    if world == 1:
        return [mine]
    lines = [torch.zeros_like(line) for _ in range(world)]
    dist.all_gather(lines, line)
    return [one.tolist() for one in lines]


def _free(rank: int, device: torch.device) -> list[tuple[float, float]]:
    """(place, free bytes): of its GPU, which has one rank; or of its host, the same in all containers, and of its own container."""
    if device.type == "cuda":
        return [(float(rank), float(torch.cuda.mem_get_info(device)[0]))]
    boot, groups = _text("/proc/sys/kernel/random/boot_id"), _text("/proc/self/cgroup")
    container = f"{boot}{groups}{Path('/proc/self/ns/cgroup').readlink()}"
    known = free_memory.available_on_host(_text), free_memory.available_in_cgroup(_text)
    free = [math.inf if found is None else float(found) for found in known]
    return [(float(zlib.crc32(place.encode())), left) for place, left in zip((boot, container), free, strict=True)]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
