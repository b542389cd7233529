"""The fingerprint of a run: versions, CPU, GPUs, threads, and hashes of code and data, on which its result depends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The facts from every node's system.json.
FACTS = ("torch", "python", "kernel", "cpu", "cores", "image", "cuda", "nccl", "driver", "gpus")
#: The facts that determine the exact result: a rank that resumes with another value may compute another result.
BITS = ("torch", "cpu", "cuda", "nccl", "driver", "gpus")


def node_fingerprint(
    systems: Mapping[str, Mapping[str, Any]],
    slots: Sequence[str],
    *,
    code: str,
    threads: int,
    backend: str,
    data: str | None = None,
) -> dict[str, Any]:
    """The fingerprint of nodes. ``systems``: node or spare -> its system.json; empty if it is not known.

    A fact is a single value if all slots agree, else a list in the order of group ranks. ``mixed``: fact -> node -> value,
    for facts that determine the exact result and differ between nodes. ``untold``: nodes without a system.json.
    """
    facts = {fact: _common([systems.get(name, {}).get(fact) for name in slots]) for fact in FACTS}
    mixed = {fact: {name: facts.get(fact) for name, facts in systems.items() if facts} for fact in BITS}
    differing = {fact: values for fact, values in mixed.items() if len({repr(value) for value in values.values()}) > 1}
    untold = sorted(name for name, facts in systems.items() if not facts)
    return {
        **{fact: value for fact, value in facts.items() if value is not None},
        **({"mixed": differing} if differing else {}),
        **({"untold": untold} if untold else {}),
        "threads": threads,
        "backend": backend,
        "code": code,
        "data": _data(Path(data)) if data else "",
    }


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _data(folder: Path) -> str:
    """SHA-256 over names, sizes (bytes) and modification times (ns) in ``folder``: another data set has another twin."""
    try:
        entries = sorted((entry.name, entry.stat()) for entry in folder.iterdir())
    except OSError as error:
        return f"{folder}: not readable here: {error.strerror}"
    lines = (f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n" for name, status in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
