"""Saves into a buffer that the script then writes to a file: found by the files that it opens, their size and their SHA-256."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from . import file_hashes

#: Files that were opened for writing and buffers that are remembered.
REMEMBERED = 64


class Buffers:
    """Buffers that wait for their file. The audit hook that sees files being opened is installed with the first one."""

    def __init__(self, hashes: file_hashes.HashThread, commit: Callable[[Any, str, float], None]) -> None:
        self._hashes, self._commit = hashes, commit
        self._waiting: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
        self._opened: OrderedDict[str, None] = OrderedDict()
        self._is_hooked = False
        self._pid = os.getpid()

    def add(self, save: Any, data: bytes) -> None:
        """``save`` wrote ``data`` into a buffer."""
        if not self._is_hooked:
            sys.addaudithook(self._audit)
            self._is_hooked = True
            self._pid = os.getpid()
        self._waiting[save.id] = (save, data)
        while len(self._waiting) > 2:  # each holds the memory of a checkpoint
            self._waiting.popitem(last=False)

    def waiting(self) -> int:
        """Return how many buffers are held."""
        return len(self._waiting)

    def move(self, source: str, target: str) -> None:
        """A file was renamed."""
        if self._opened.pop(source, self) is None:
            self._opened[target] = None

    def match(self, n: int) -> None:
        """Compare the files that were opened since with the buffers, in the thread of low priority.

        After the second step that follows (``n`` steps are completed), a buffer is given up: it holds the memory of a checkpoint.
        """
        for path in list(self._opened) if self._waiting else ():
            stamp = file_hashes.stamp(path)
            matches = [(save, data) for save, data in self._waiting.values() if stamp and len(data) == stamp[1]]
            if matches and stamp:
                self._opened.pop(path)
                self._submit(matches, path, stamp)
        for number in [number for number, (save, _) in self._waiting.items() if n > save.n + 1]:
            del self._waiting[number]

    def _submit(self, matches: list[tuple[Any, bytes]], path: str, stamp: tuple[int, int, int]) -> None:
        written = time.monotonic() - max(0.0, time.time() - stamp[2] / 1e9)

        def compare() -> None:
            digest = file_hashes.hash_unchanged(path, stamp)
            for save, data in matches:
                if digest is not None and hashlib.sha256(data).hexdigest() == digest and save.committed is None:
                    self._waiting.pop(save.id, None)
                    self._commit(save, path, written)

        self._hashes.submit(compare)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not self._waiting or os.getpid() != self._pid:
            return
        path, _, flags = args
        if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            self._opened[os.path.abspath(os.fsdecode(path))] = None
            while len(self._opened) > REMEMBERED:
                self._opened.popitem(last=False)
