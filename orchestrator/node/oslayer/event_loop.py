"""One thread, one selector: descriptors, timers and the exits of children, for keeper and agent alike."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable

Call = Callable[[], None]


class Timer:
    """Something to be called later, unless cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Calls back, one at a time. A call that raises is logged to stderr; the loop goes on."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._wake: tuple[int, int] | None = None

    def watch(self, fd: int, call: Call) -> None:
        self._selector.register(fd, selectors.EVENT_READ, call)

    def forget(self, fd: int) -> None:
        self._selector.unregister(fd)

    def later(self, after_s: float, call: Call) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + after_s, next(self._order), timer))
        return timer

    def every(self, period_s: float, call: Call) -> None:
        """Call now and then every ``period_s``, without drift and without catching up on missed turns."""
        due = time.monotonic()

        def turn() -> None:
            nonlocal due
            due = max(due + period_s, time.monotonic())
            self.later(due - time.monotonic(), turn)
            call()

        turn()

    def on_child(self, call: Call) -> None:
        """Call whenever children have changed state (SIGCHLD)."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = (read, write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

        def woken() -> None:
            os.read(read, 4096)
            call()

        self.watch(read, woken)

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Wait for whatever comes first, then make every call that is due."""
        ready = self._selector.select(self._patience())
        for key, _ in ready:
            _safely(key.data)
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, timer = heapq.heappop(self._timers)
            if timer.call:
                _safely(timer.call)

    def leave(self) -> None:
        """In a forked child: let go of what belongs to the parent's loop."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in self._wake or ():
            os.close(fd)

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None


def readable(fd: int, timeout_s: float) -> bool:
    """Wait until a descriptor can be read."""
    return bool(select.select([fd], [], [], timeout_s)[0])


def _safely(call: Call) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001
        with contextlib.suppress(OSError):  # a full disk ends no loop
            traceback.print_exc()
            sys.stderr.flush()
