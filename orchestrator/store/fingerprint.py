"""What a result depends on besides the trial: versions, CPU, threads, the hash of the code."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def take(*, code: str, threads: int, backend: str) -> dict[str, Any]:
    """``code``: hash of the payload that the ranks run. torch is asked for its version without being imported."""
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "kernel": os.uname().release,
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "backend": backend,
        "code": code,
    }


def deciding(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that can change a bit of a result; twins are keyed by them."""
    return {name: fingerprint.get(name) for name in ("torch", "cpu", "threads", "backend", "code")}


def version(package: str) -> str:
    """Of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu(file: Path) -> str:
    """The model name of the first CPU; the machine's architecture where there is none."""
    try:
        with file.open() as lines:
            found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(found, platform.machine())
    except OSError:
        return platform.machine()
