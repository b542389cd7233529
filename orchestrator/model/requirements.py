"""What ccbed requires of hosts and images, in one place: versions, disk, shared memory; and one requirement that was checked."""

from __future__ import annotations

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


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def size_text(count: int) -> str:
    """Bytes in whole GiB, or MiB where there are less."""
    return f"{count / 1024**3:.0f} GiB" if count >= 1024**3 else f"{count / MIB:.0f} MiB"
