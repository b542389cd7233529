"""Free memory of hosts and containers, and the memory that a workload requires. The caller reads the kernel's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .frozen import dataclass

#: Gives the text of a file; empty where it cannot be read.
Read = Callable[[str], str]
_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
#: cgroup hierarchy -> the files of its limit and its usage, and the statistic of reclaimable page cache.
_FILES = {
    _V1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    _V2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """``size_bytes`` that the nodes share; ``location`` for messages: ``host h1``, ``the container of n2``."""

    location: str
    nodes: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredMemory:
    """``ranks``: rank -> bytes during ``operation``; ``setting``: the user's setting to reduce, now ``size_bytes``."""

    operation: str
    ranks: tuple[int, ...]
    size_bytes: int = 0
    setting: str = ""


def available_on_host(read: Read) -> int | None:
    """Bytes that a host can allocate without swapping; None if its kernel does not report it."""
    for line in read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def available_in_cgroup(read: Read, pid: int | str = "self") -> int | None:
    """Bytes that the control groups of a process still allow; None if no visible group limits it."""
    return min(_available_in_groups(read, pid), default=None)


def _available_in_groups(read: Read, pid: int | str) -> Iterator[int]:
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = _V2 if not controllers else _V1 if "memory" in controllers.split(",") else ""
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1) if base and ".." not in parts else ():
            yield from _available_in_group(read, base, "/".join((base, *parts[:depth])))


def _available_in_group(read: Read, base: str, group: str) -> Iterator[int]:
    limit_file, usage_file, reclaimable = _FILES[base]
    limit, usage = read(f"{group}/{limit_file}").strip(), read(f"{group}/{usage_file}").strip()
    if limit.isdigit() and usage.isdigit():
        stat = dict(line.split(" ", 1) for line in read(f"{group}/memory.stat").splitlines() if " " in line)
        yield max(0, int(limit) - int(usage) + int(stat.get(reclaimable, 0)))
