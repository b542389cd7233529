"""Work on many hosts at once, in a bounded number of threads that do not delay the end of the process; and upkeep of connections."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ..model.provider import AT_ONCE

T = TypeVar("T")


class BoundedThreads:
    """A pool of at most ``most`` daemon threads, which end when all work is done. (Python's exit waits for the threads of an executor.)"""

    def __init__(self, name: str, most: int = AT_ONCE) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Do the work soon, after all work that was given before; returns at once. Raises RuntimeError if no thread can start."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, work))
            if self._threads < self._most:
                self._start_thread()
        return future

    def _start_thread(self) -> None:
        """Start a thread; the lock is held. If none can start, the threads that there are do the newest work too."""
        try:
            threading.Thread(target=self._run, daemon=True, name=self._name).start()
        except RuntimeError:
            if not self._threads:
                self._waiting.pop()
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                future, work = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  raised again by the future
                future.set_exception(error)


class Kept(Protocol):
    """A connection that is kept up. ``keep`` is called once in each time slice, and must not wait for its host."""

    def keep(self) -> None: ...


class Upkeep:
    """The upkeep of one connection, or of all connections of a bed. Its thread runs while there are connections."""

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
