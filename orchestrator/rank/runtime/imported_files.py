"""Which of the user's files a rank has imported, with their SHA-256: what the script used, as far as Python knows it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import recorder

#: Larger files are named with their size and not hashed, in bytes.
LARGEST = 64 * 1024 * 1024


def write(out: Path, rank: int, user: Path) -> None:
    """``imported-r<rank>.json`` in ``out``; nothing where no file of ``user`` was imported. Raises OSError."""
    files = of(dict(sys.modules), user)
    if files:
        recorder.write(out / f"imported-r{rank}.json", json.dumps(files, indent=1) + "\n")


def of(modules: Mapping[str, ModuleType], user: Path) -> dict[str, Any]:
    """Path below ``user`` -> module, size and SHA-256."""
    result = {}
    for name, module in sorted(modules.items()):
        file = Path(str(getattr(module, "__file__", None) or ""))
        if file.is_relative_to(user) and file.is_file():
            result[str(file.relative_to(user))] = {"module": name, **_described(file)}
    return result


def _described(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    if size > LARGEST:
        return {"size_bytes": size, "sha256": "not hashed"}
    return {"size_bytes": size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
