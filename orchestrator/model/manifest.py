"""The manifest of a checkpoint whose ranks write a file each: one hash stands for all of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

#: File name -> {sha256, bytes}.
Files = Mapping[str, Mapping[str, Any]]


def joint(files: Files) -> str:
    """SHA-256 of what ``sha256sum`` prints for the files in the order of their names (LC_ALL=C).

    Raises ValueError for a name that leads out of the checkpoint's directory.
    """
    lines = hashlib.sha256()
    for name, entry in sorted(files.items()):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is no file of the checkpoint's own")
        lines.update(f"{entry['sha256']}  {name}\n".encode())
    return lines.hexdigest()


def total(files: Files) -> int:
    """Bytes of all files."""
    return sum(int(entry["bytes"]) for entry in files.values())
