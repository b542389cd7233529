"""Manifests of checkpoints with a file per rank, which have a joint hash of all files; and the fence that old attempts do not pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: The file of the attempt that may commit, in the directory of checkpoints.
FENCE = "fence.json"
#: File name -> {sha256, bytes}.
Files = Mapping[str, Mapping[str, Any]]


def joint(files: Files) -> str:
    """SHA-256 of the output of ``sha256sum`` for the files in the order of their names (LC_ALL=C).

    Raises ValueError for a name outside the checkpoint's directory.
    """
    lines = hashlib.sha256()
    for name, entry in sorted(files.items()):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not a file of the checkpoint")
        lines.update(f"{entry['sha256']}  {name}\n".encode())
    return lines.hexdigest()


def total(files: Files) -> int:
    """Bytes of all files."""
    return sum(int(entry["bytes"]) for entry in files.values())


def fenced_attempt(content: bytes, file: str) -> int:
    """The attempt that may commit, by the content of the fence. Raises ValueError that names ``file`` if it names none."""
    try:
        return int(json.loads(content)["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: has no epoch") from error
