"""Keeps up the connections to hosts: one thread looks at all of them in turns, a bounded number makes lost ones again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ..bounded_threads import BoundedThreads


class Kept(Protocol):
    """A connection that is kept up. ``keep`` is called once in each time slice, and must not wait for its host."""

    def keep(self) -> None: ...


class Upkeep:
    """Of one connection, or of all connections of a bed. Its thread runs while there are connections."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._changed = threading.Condition()
        self._kept: dict[int, Kept] = {}
        self._is_running = False
        self._threads = BoundedThreads("ccbed-reconnect")

    def add(self, connection: Kept) -> None:
        """Raises RuntimeError if no thread can start."""
        with self._changed:
            if not self._is_running:
                threading.Thread(target=self._run, daemon=True, name="ccbed-upkeep").start()
                self._is_running = True
            self._kept[id(connection)] = connection

    def remove(self, connection: Kept) -> None:
        with self._changed:
            self._kept.pop(id(connection), None)
            if not self._kept:
                self._changed.notify_all()

    def start(self, work: Callable[[], None]) -> None:
        """Do what may wait for a host, in another thread. Raises RuntimeError if none can start."""
        self._threads.start(work)

    def _run(self) -> None:
        while True:
            begin = time.monotonic()
            for connection in list(self._kept.values()):
                with suppress(Exception):  # the others are kept up, and this one has its next slice
                    connection.keep()
            with self._changed:
                self._changed.wait_for(lambda: not self._kept, max(0.0, begin + self._slice_s - time.monotonic()))
                if not self._kept:
                    self._is_running = False
                    return
