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


def identity(image: str, engine: str) -> str:
    """Empty where the engine has no such image."""
    with contextlib.suppress(RuntimeError):
        return _docker(engine, "image", "inspect", "--format", "{{.Id}}", image).strip()
    return ""


def local_engine() -> str:
    """This machine's own engine, as the docker program finds it."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def _of(pid: int) -> str:
    return f"unix://{machines.socket_of(pid)}"


def _docker(engine: str, *arguments: str) -> str:
    return processes.run(["docker", "-H", engine, *arguments], timeout=_LOAD_S)


def load(lab: Lab, image: str, pids: Mapping[str, int]) -> tuple[str, ...]:
    """The hosts that it was brought to; those that had it are left alone. Raises RuntimeError."""
    wanted = identity(image, local_engine())
    if not wanted:
        raise RuntimeError(f"this machine's engine has no image {image}; next: ccbed image build")
    lacking = {host: _of(pid) for host, pid in pids.items() if identity(image, _of(pid)) != wanted}
    if lacking:
        bring(lab.root, image, lacking)
    return tuple(lacking)


def bring(folder: Path, image: str, engines: Mapping[str, str]) -> None:
    archive = str(folder / f"image-{os.getpid()}.tar")
    try:
        _docker(local_engine(), "save", "--output", archive, image)
        with ThreadPoolExecutor(len(engines)) as pool:
            list(pool.map(lambda engine: _load(engine, archive), engines.values()))
    finally:
        Path(archive).unlink(missing_ok=True)


def _load(engine: str, archive: str) -> None:
    """The image that had the name before has none now: it goes, unless a container is of it."""
    _docker(engine, "load", "--quiet", "--input", archive)
    _docker(engine, "image", "prune", "--force")


def tidy(pid: int) -> None:
    """Containers of before the lab went down; nobody knows them any more."""
    _docker(_of(pid), "container", "prune", "--force")
