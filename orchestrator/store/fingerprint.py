"""What a result depends on besides the trial: versions, CPU, threads, the hashes of the code and of the data."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def take(*, code: str, threads: int, backend: str, data: str | None = None) -> dict[str, Any]:
    """``code``: hash of the payload that the ranks run; ``data``: the data directory, None for the data of the payload.

    torch is asked for its version without being imported.
    """
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "kernel": os.uname().release,
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "backend": backend,
        "code": code,
        "data": _data(Path(data)) if data else "",
    }


def version(package: str) -> str:
    """Of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _data(folder: Path) -> str:
    """SHA-256 over the names, sizes (bytes) and times of change (ns) of what lies in ``folder``: another data set, another twin."""
    try:
        entries = sorted((entry.name, entry.stat()) for entry in folder.iterdir())
    except OSError as error:
        return f"not readable: {error.strerror}"
    lines = (f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n" for name, found in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _cpu(file: Path) -> str:
    """The model name of the first CPU; the machine's architecture where there is none."""
    try:
        with file.open() as lines:
            found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(found, platform.machine())
    except OSError:
        return platform.machine()
