"""Whether the buffers of a measurement fit into the memory of the hosts: asked of all ranks before any of them is made."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from . import buffer, cases

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
#: (where the memory is, bytes that a rank needs there, bytes that are free there), by rank.
Told = Sequence[Sequence[float]]


class TooLarge(Exception):
    """A case needs more memory than there is."""

    kind = "memory"


def require(wanted: Iterable[cases.Case], rank: int, world: int, device: torch.device, spare: int = 0) -> None:
    """A collective of all ranks. Raises TooLarge on every rank where one lacks the memory. ``spare``: bytes beside the cases'."""
    largest = max(wanted, key=lambda case: need(case, rank), default=None)
    mine = [_place(rank, device), float(need(largest, rank) if largest else 0) + spare, _free(device)]
    told = _gathered(mine, world, device)
    where = "on one GPU" if device.type == "cuda" else "on one host"
    if largest and (problem := lack(told, where)):
        raise TooLarge(f"{largest.label()}: {problem}")


def need(case: cases.Case, rank: int) -> int:
    """Bytes of the buffer of ``rank``, of what is put into it and of what must come out."""
    ranks = next((group for group in case.groups if rank in group), None)
    if ranks is None:
        return 0
    found = buffer.layout(case, ranks, ranks.index(rank))
    return cases.DTYPES[case.item.dtype] * (found.size + sum(one.size for one in (*found.inputs, *found.outputs)))


def lack(told: Told, where: str) -> str:
    """Where memory is wanting, and how much; empty: nowhere. Ranks at one place share what is free there."""
    for place, _, free in told:
        there = [needed for at, needed, _ in told if at == place]
        if sum(there) > free:
            ranks = [rank for rank, (at, *_) in enumerate(told) if at == place]
            named = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"{len(ranks)} ranks from rank {ranks[0]} on need"
            return f"{named} {_bytes(sum(there))} {where}, {_bytes(free)} are free"
    return ""


def _gathered(mine: list[float], world: int, device: torch.device) -> Told:
    line = torch.tensor(mine, dtype=torch.float64, device=device)
    if world == 1:
        return [mine]
    lines = [torch.zeros_like(line) for _ in range(world)]
    dist.all_gather(lines, line)
    return [one.tolist() for one in lines]


def _place(rank: int, device: torch.device) -> float:
    """A number for this host, the same in all its containers; a GPU has one rank."""
    if device.type == "cuda":
        return float(rank)
    return float(zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))


def _free(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return float(fields["MemAvailable"].split()[0]) * 1024


def _bytes(count: float) -> str:
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {_UNITS[power]}"
