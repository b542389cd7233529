"""Slows processes down where there is no cgroup: they run for a part of every 0.1 s and stand still for the rest."""

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
#: How long processes are observed until it is known how much of the time they stand still.
WINDOW_S = 3 * PERIOD_S


class DutyCycle:
    """SIGCONT and SIGSTOP in turn, to the processes that ``members`` lists at that time."""

    def __init__(self, loop: Loop, members: Callable[[], list[Process]]) -> None:
        self._loop = loop
        self._members = members
        self._timer: Timer | None = None
        self._percent = 100
        #: (CLOCK_MONOTONIC, does every process stand still)
        self._samples: deque[tuple[float, bool]] = deque()

    @property
    def is_active(self) -> bool:
        return self._timer is not None

    def start(self, percent: int) -> None:
        """Let the processes run for ``percent`` of the time; harmless to repeat."""
        if self.is_active and percent == self._percent:
            return
        self.stop()
        self._percent = percent
        self._halt()

    def stop(self) -> list[int]:
        """Let every process go on for good; the pids of those that stood still."""
        if self._timer:
            self._timer.cancel()
        self._timer = None
        self._samples.clear()
        return self._continue()

    def is_observed(self, percent: int) -> tuple[bool | None, dict[str, Any]]:
        """Do the processes stand still for at least half of the time that ``percent`` leaves? None: not known yet."""
        now, members = time.monotonic(), self._members()
        self._samples.append((now, bool(members) and all(one.state == processes.STOPPED for one in members)))
        if now - self._samples[0][0] < WINDOW_S:
            return None, {}
        while now - self._samples[0][0] > 2 * WINDOW_S:
            self._samples.popleft()
        stopped = sum(is_stopped for _, is_stopped in self._samples) / len(self._samples)
        return 100 * stopped >= (100 - percent) / 2, {"stopped_percent": round(100 * stopped)}

    def _continue(self) -> list[int]:
        return processes.send((one for one in self._members() if one.state == processes.STOPPED), signal.SIGCONT)

    def _run(self) -> None:
        self._continue()
        self._timer = self._loop.later(PERIOD_S * self._percent / 100, self._halt)

    def _halt(self) -> None:
        processes.send(self._members(), signal.SIGSTOP)
        self._timer = self._loop.later(PERIOD_S * (100 - self._percent) / 100, self._run)
