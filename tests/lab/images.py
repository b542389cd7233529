"""Brings an image from this machine's engine to those of the hosts: saved once, loaded in parallel, skipped by its id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import machines, processes
from .layout import Lab

_LOAD_S = 900


def identity(image: str, socket: str = "/var/run/docker.sock") -> str:
    """Empty where the engine has no such image."""
    with contextlib.suppress(RuntimeError):
        argv = ["docker", "-H", f"unix://{socket}", "image", "inspect", "--format", "{{.Id}}", image]
        return processes.run(argv).strip()
    return ""


def load(lab: Lab, image: str, pids: Mapping[str, int]) -> tuple[str, ...]:
    """The hosts that it was brought to; those that had it are left alone. Raises RuntimeError."""
    wanted = identity(image)
    if not wanted:
        raise RuntimeError(f"this machine's engine has no image {image}; next: ccbed image build")
    lacking = {
        host: machines.socket_of(pid)
        for host, pid in pids.items()
        if identity(image, machines.socket_of(pid)) != wanted
    }
    if lacking:
        _bring(lab, image, lacking)
    return tuple(lacking)


def _bring(lab: Lab, image: str, sockets: Mapping[str, str]) -> None:
    archive = lab.root / f"image-{os.getpid()}.tar"
    try:
        processes.run(["docker", "save", "--output", str(archive), image], timeout=_LOAD_S)
        with ThreadPoolExecutor(len(sockets)) as pool:
            list(pool.map(lambda socket: _load_one(archive, socket), sockets.values()))
    finally:
        archive.unlink(missing_ok=True)


def _load_one(archive: Path, socket: str) -> None:
    processes.run(["docker", "-H", f"unix://{socket}", "load", "--quiet", "--input", str(archive)], timeout=_LOAD_S)


def tidy(pid: int) -> None:
    """Containers of before the lab went down; nobody knows them any more."""
    processes.run(["docker", "-H", f"unix://{machines.socket_of(pid)}", "container", "prune", "--force"])
