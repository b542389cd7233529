"""What ccbed requires of hosts and images, in one place: versions, disk, shared memory; and one requirement that was checked."""

from __future__ import annotations

import re
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
