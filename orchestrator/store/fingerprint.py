"""What a result depends on besides the trial: versions, CPU, GPUs, threads, the hashes of the code and of the data."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

#: What each node's system.json is asked for.
FACTS = ("torch", "python", "kernel", "cpu", "cores", "image", "cuda", "nccl", "driver", "gpus")
#: Those that decide about bits: a rank that goes on where one of them is another may come to another result.
BITS = ("torch", "cpu", "cuda", "nccl", "driver", "gpus")


def take(*, code: str, threads: int, backend: str, data: str | None = None) -> dict[str, Any]:
    """Of a bed on this machine. ``code``: hash of the payload that the ranks run; ``data``: the data directory, None for
    the data of the payload.

    torch is asked for its version without being imported.
    """
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "kernel": os.uname().release,
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        **_asked(code, threads, backend, data),
    }


def of_nodes(
    systems: Mapping[str, Mapping[str, Any]],
    slots: Sequence[str],
    *,
    code: str,
    threads: int,
    backend: str,
    data: str | None = None,
) -> dict[str, Any]:
    """Of the nodes that run: ``systems`` is what each, spares too, says of itself; empty where it said nothing.

    A fact is one value where all slots agree, else a list in the order of group ranks. ``mixed``: fact -> node -> value,
    for facts that decide about bits and differ, between slots or to a spare. ``untold``: nodes that said nothing.
    """
    facts = {fact: _one([systems.get(name, {}).get(fact) for name in slots]) for fact in FACTS}
    mixed = {fact: {name: facts.get(fact) for name, facts in systems.items() if facts} for fact in BITS}
    apart = {fact: values for fact, values in mixed.items() if len({repr(value) for value in values.values()}) > 1}
    untold = sorted(name for name, facts in systems.items() if not facts)
    return {
        **{fact: value for fact, value in facts.items() if value is not None},
        **({"mixed": apart} if apart else {}),
        **({"untold": untold} if untold else {}),
        **_asked(code, threads, backend, data),
    }


def version(package: str) -> str:
    """Of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _asked(code: str, threads: int, backend: str, data: str | None) -> dict[str, Any]:
    return {"threads": threads, "backend": backend, "code": code, "data": _data(Path(data)) if data else ""}


def _one(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _data(folder: Path) -> str:
    """SHA-256 over the names, sizes (bytes) and times of change (ns) of what lies in ``folder``: another data set, another twin."""
    try:
        entries = sorted((entry.name, entry.stat()) for entry in folder.iterdir())
    except OSError as error:
        return f"{folder}: not readable here: {error.strerror}"
    lines = (f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n" for name, status in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _cpu(file: Path) -> str:
    """The model name of the first CPU; the machine's architecture where there is none."""
    try:
        with file.open() as lines:
            models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(models, platform.machine())
    except OSError:
        return platform.machine()
