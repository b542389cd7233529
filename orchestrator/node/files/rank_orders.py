"""Orders for the watcher inside of a rank (``orders-r<rank>.jsonl``) and its answers (``acts-r<rank>.jsonl``).

A file reaches a rank in whatever process it runs: forked by the agent, started cold, or started by a launcher of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def append(out: Path, rank: int, order: Mapping[str, Any]) -> None:
    """Append one order. ``out``: the directory of the rank's attempt. Raises OSError."""
    fd = os.open(out / f"orders-r{rank}.jsonl", _FLAGS, 0o600)
    try:
        os.write(fd, json.dumps(order).encode() + b"\n")
    finally:
        os.close(fd)


def answers(out: Path, rank: int) -> list[dict[str, Any]]:
    """What the rank has done on order, as it reports: ``{"id", "problem"?, ...evidence}``; a torn last line is left out."""
    try:
        lines = (out / f"acts-r{rank}.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    read = []
    for line in lines:
        with contextlib.suppress(ValueError):
            read.append(json.loads(line))
    return [answer for answer in read if isinstance(answer, dict)]
