"""Work on many hosts at once, in a bounded number of threads that do not delay the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..model.provider import AT_ONCE

T = TypeVar("T")


class BoundedThreads:
    """At most ``most`` daemon threads, which end when nothing is left to do. (The exit of Python waits for the threads of an executor.)"""

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
        """With the lock held. If none can start, the threads that there are do the newest work too."""
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
