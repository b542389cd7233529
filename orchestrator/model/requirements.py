"""Holds what ccbed requires of hosts and images: versions, disk, memory; one requirement that was checked; free memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

from .frozen import dataclass

MIB = 1024**2

#: The oldest Python that runs keeper, agent and ranks, and the oldest torch of ranks.
HOST_PYTHON = (3, 10)
HOST_TORCH = (2, 4)
#: The oldest Python of an image that ccbed builds.
IMAGE_PYTHON = (3, 11)
#: The oldest container engine. ``prepare/facts.py`` and the playbooks, which run alone, repeat these; a test compares them.
ENGINE = (20, 10)
PODMAN = (4, 3)
#: The version of torch in ccbed's own images, which are named by it.
TORCH = "2.13.0"
CPU_IMAGE = f"ccbed/cpu:{TORCH}"
CUDA_IMAGE = f"ccbed/cuda:{TORCH}"
#: Where an engine listens unless the inventory names another socket.
ENGINE_SOCKET = "/var/run/docker.sock"

#: Free space in the bed's directories, in /dev/shm of each node, and for an image that is copied to a host.
DISK_BYTES = 256 * MIB
#: Fewer open files per process than this are raised by preparation (playbooks/vars.yml).
OPEN_FILES = 65536
SHM_BYTES = 64 * MIB
IMAGE_BYTES = 6 * 1024 * MIB
#: Gives the text of a file; empty where it cannot be read.
Read = Callable[[str], str]
_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
#: cgroup hierarchy -> the files of its limit and its usage, and the statistic of reclaimable page cache.
_FILES = {
    _V1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    _V2: ("memory.max", "memory.current", "inactive_file"),
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement that was checked. ``fail``: no run without the fix; ``warn``: it works, with a reservation."""

    name: str
    outcome: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""

    @classmethod
    def ok(cls, name: str, text: str = "ok") -> Requirement:
        return cls(name=name, outcome="ok", text=text)

    @classmethod
    def warn(cls, name: str, text: str, fix: str) -> Requirement:
        return cls(name=name, outcome="warn", text=text, fix=fix)

    @classmethod
    def fail(cls, name: str, text: str, fix: str = "") -> Requirement:
        return cls(name=name, outcome="fail", text=text, fix=fix)


def space(name: str, free: int, needed: int, fix: str, *, of: str = "") -> Requirement:
    """Free bytes of a file system. ``of``: which one, for messages."""
    where = f" {of}" if of else ""
    if free >= needed:
        return Requirement.ok(name, f"{size_text(free)}{where or ' ok'}")
    return Requirement.fail(name, f"{size_text(free)} free{where}, {size_text(needed)} needed", fix)


def version(text: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def size_text(count: float) -> str:
    """``512 B``, ``3.4 MiB``, ``20 GiB``."""
    power = min((int(abs(count)).bit_length() - 1) // 10, len(_UNITS) - 1) if abs(count) >= 1 else 0
    return f"{count / 1024**power:.1f}".removesuffix(".0") + f" {_UNITS[power]}"


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
