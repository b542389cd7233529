"""Manifests of checkpoints with a file per rank: a joint hash of all files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

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
