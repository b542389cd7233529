"""Slows processes down without a cgroup: they run for a part of every 0.1 s and are stopped for the rest."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import processes
from .event_loop import Loop, Timer
from .processes import Process

PERIOD_S = 0.1
#: How long the processes are observed until the part of the time in which they are stopped is known.
WINDOW_S = 3 * PERIOD_S
LEAST_SAMPLES = 6


class DutyCycle:
    """Sends SIGCONT and SIGSTOP in turn to the processes that ``members`` lists at that time."""

    def __init__(self, loop: Loop, members: Callable[[], list[Process]]) -> None:
        self._loop = loop
        self._members = members
        self._timer: Timer | None = None
        self._percent = 100
        #: (CLOCK_MONOTONIC, is every process stopped)
        self._samples: deque[tuple[float, bool]] = deque()

    @property
    def is_active(self) -> bool:
        return self._timer is not None

    def start(self, percent: int) -> None:
        """Let the processes run for ``percent`` of the time. Idempotent."""
        if self.is_active and percent == self._percent:
            return
        self.stop()
        self._percent = percent
        self._halt()

    def stop(self) -> list[int]:
        """Continue every process; the pids of those that were stopped."""
        if self._timer:
            self._timer.cancel()
        self._timer = None
        self._samples.clear()
        return self._continue()

    def is_observed(self, percent: int) -> tuple[bool | None, dict[str, Any]]:
        """Are the processes stopped for at least half of the time that ``percent`` leaves? None: not known yet."""
        now, members = time.monotonic(), self._members()
        self._samples.append((now, bool(members) and all(process.state == processes.STOPPED for process in members)))
        while now - self._samples[0][0] > 2 * WINDOW_S:
            self._samples.popleft()
        if now - self._samples[0][0] < WINDOW_S or len(self._samples) < LEAST_SAMPLES:
            return None, {}
        stopped = sum(is_stopped for _, is_stopped in self._samples) / len(self._samples)
        return 100 * stopped >= (100 - percent) / 2, {"stopped_percent": round(100 * stopped)}

    def _continue(self) -> list[int]:
        return processes.send_signal(
            (process for process in self._members() if process.state == processes.STOPPED), signal.SIGCONT
        )

    def _run(self) -> None:
        self._continue()
        self._timer = self._loop.call_later(PERIOD_S * self._percent / 100, self._halt)

    def _halt(self) -> None:
        processes.send_signal(self._members(), signal.SIGSTOP)
        self._timer = self._loop.call_later(PERIOD_S * (100 - self._percent) / 100, self._run)
