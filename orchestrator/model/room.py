"""Memory that is free at a place, and what a workload's largest buffers need of it. The files of the kernel are read by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Gives the text of a file; empty where it cannot be read.
Read = Callable[[str], str]
_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
#: By hierarchy: the limit, what is used, and the name of what is used for files that nobody needs.
_FILES = {
    _V1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    _V2: ("memory.max", "memory.current", "inactive_file"),
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``free`` bytes that the nodes share; ``place`` in words: ``host h1``, ``the container of n2``."""

    place: str
    nodes: tuple[str, ...]
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Bytes of each rank while ``what`` is done; ``smaller``: what the user may set lower, a size of ``size`` bytes."""

    what: str
    ranks: tuple[int, ...]
    size: int = 0
    smaller: str = ""


def available(read: Read) -> int | None:
    """Bytes that a host can still give without swapping; None where its kernel does not say."""
    for line in read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def left(read: Read, pid: int | str = "self") -> int | None:
    """Bytes that a process may still take by its control groups; None: nothing limits it that can be seen."""
    return min(_lefts(read, pid), default=None)


def _lefts(read: Read, pid: int | str) -> Iterator[int]:
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = _V2 if not controllers else _V1 if "memory" in controllers.split(",") else ""
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1) if base and ".." not in parts else ():
            yield from _of_group(read, base, "/".join((base, *parts[:depth])))


def _of_group(read: Read, base: str, group: str) -> Iterator[int]:
    limit, used, unused = _FILES[base]
    most, taken = read(f"{group}/{limit}").strip(), read(f"{group}/{used}").strip()
    if most.isdigit() and taken.isdigit():
        stat = dict(line.split(" ", 1) for line in read(f"{group}/memory.stat").splitlines() if " " in line)
        yield max(0, int(most) - int(taken) + int(stat.get(unused, 0)))


def amount(count: float) -> str:
    """``20 GiB``."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {_UNITS[power]}"
