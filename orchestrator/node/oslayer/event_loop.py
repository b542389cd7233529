"""The event loop of keeper and agent: descriptors, timers and exits of children, in one thread."""

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
from collections.abc import Callable, Collection, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[], None]
#: What a task waits for: a pause in seconds, or a call that gets the function to continue the task with a result, once.
Wait = float | Callable[[Callable[[Any], None]], None]
#: A task: it yields what it waits for, so that its steps read top-down, and may return a value to the task that awaits it.
Steps = Generator[Wait, Any, T]


class Timer:
    """A pending call that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Runs one call at a time. A call that raises an exception is logged to stderr, and the loop continues."""

    def __init__(self) -> None:
        #: The programs that run: pid -> what takes the exit code where this process reaps all its children.
        self.programs: dict[int, Callable[[int], None]] = {}
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._wake: tuple[int, int] | None = None
        self._signals: dict[int, Call] = {}

    def add_reader(self, fd: int, call: Call) -> None:
        self._selector.register(fd, selectors.EVENT_READ, call)

    def remove_reader(self, fd: int) -> None:
        self._selector.unregister(fd)

    def call_later(self, after_s: float, call: Call) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + after_s, next(self._order), timer))
        return timer

    def call_every(self, period_s: float, call: Call) -> None:
        """Call now and then every ``period_s``, without drift. Missed calls are not made up for."""
        due = time.monotonic()

        def run_and_rearm() -> None:
            nonlocal due
            due = max(due + period_s, time.monotonic())
            self.call_later(due - time.monotonic(), run_and_rearm)
            call()

        run_and_rearm()

    def start(self, steps: Steps[None]) -> None:
        """Run a task until it ends. While it waits, the loop makes other calls. What cannot wait raises its error in the task."""

        def go_on(result: Any = None) -> None:
            with contextlib.suppress(StopIteration):
                wait = steps.send(result)
                while True:
                    try:
                        wait(go_on) if callable(wait) else self.call_later(wait, go_on)
                    except Exception as error:  # noqa: BLE001 such as no descriptor left
                        wait = steps.throw(error)
                    else:
                        return

        go_on()

    def on_signal(self, number: int, call: Call) -> None:
        """Call after one or more of these signals."""
        if self._wake is None:
            self._wake = read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            self.add_reader(read, lambda: self._call_signalled(set(os.read(read, 4096))))
        self._signals[number] = call
        signal.signal(number, lambda *_: None)

    def _call_signalled(self, numbers: Collection[int]) -> None:
        for number, call in self._signals.items():
            if number in numbers:
                _run_logged(call)

    def run(self) -> None:
        while True:
            self.run_once()

    def run_once(self) -> None:
        """Wait for the next descriptor or timer, then make every call that is due."""
        ready = self._selector.select(self._timeout_s())
        for key, _ in ready:
            _run_logged(key.data)
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, timer = heapq.heappop(self._timers)
            if timer.call:
                _run_logged(timer.call)

    def close_in_child(self) -> None:
        """Release the descriptors and signal handlers of the parent's loop in a forked child."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *self._signals):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for fd in self._wake or ():
            os.close(fd)

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Wait until a descriptor can be read; whether it can. A negative one never can.

    ``select.select`` rejects descriptors from 1024 on.
    """
    poll = select.poll()
    if fd >= 0:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _run_logged(call: Call) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001
        with contextlib.suppress(OSError):  # a full disk does not end the loop
            traceback.print_exc()
            sys.stderr.flush()
