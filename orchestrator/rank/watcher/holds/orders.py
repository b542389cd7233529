"""Orders for this process: a file that grows reaches it however it was started, and however often its launcher restarts it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Orders:
    """The lines of ``orders-r<rank>.jsonl`` that this process has not read yet.

    ``skips_earlier``: the orders from before it began were for a process that a launcher has replaced by this one.
    """

    def __init__(self, directory: str, rank: int, *, skips_earlier: bool = False) -> None:
        self._path = Path(directory) / f"orders-r{rank}.jsonl"
        self._name = str(self._path)
        self._offset = self._path.stat().st_size if skips_earlier and self._path.exists() else 0

    def is_due(self) -> bool:
        """Are there orders that were not read? An order acts at the next step, so this is asked at every one."""
        try:  # most processes get none: an exception for a file that is missing costs more than the call
            return os.access(self._name, os.F_OK) and self._path.stat().st_size > self._offset
        except OSError:
            return False

    def read(self) -> list[dict[str, Any]]:
        """The new whole lines. It costs one ``stat`` where there are none."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.split(b"\n") if line]


def answer(directory: str, rank: int, **fields: Any) -> None:
    """Append what was done on order to ``acts-r<rank>.jsonl``: the proof that the node's keeper reads. Raises OSError."""
    path = Path(directory) / f"acts-r{rank}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps({"pid": os.getpid(), **fields}).encode() + b"\n")
    finally:
        os.close(fd)
