"""Stops the processes of a node and continues them: by several acts at once, each of which undoes its own stop, or in turns.

Without a cgroup, processes are slowed down in turns: they run for a part of every 0.1 s and are stopped for the rest.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import processes
from .event_loop import Loop, Timer
from .processes import Process


class Stops:
    """The stops of one node by SIGSTOP. ``holds_all``: an act holds every process, in turn or all the time."""

    def __init__(self) -> None:
        self.holds_all = False
        #: (pid, start time) of the processes that were stopped one by one.
        self._single: set[tuple[int, int]] = set()

    def send(self, targets: Sequence[Process], number: int) -> list[int]:
        """Send a signal to single processes; the pids that received it. What an act on all holds continues with that act."""
        identities = {_identity(process) for process in targets}
        if number == signal.SIGSTOP:
            self._single |= identities
        elif number == signal.SIGCONT:
            self._single -= identities
            if self.holds_all:
                return []
        return processes.send_signal(targets, number)

    def is_stopped(self, process: Process) -> bool:
        """Is it stopped by a signal of its own, not only together with all others?"""
        return process.state == processes.STOPPED and (not self.holds_all or _identity(process) in self._single)

    def others(self, present: Iterable[Process]) -> list[Process]:
        """Those of these processes that no signal of their own has stopped."""
        return [process for process in present if _identity(process) not in self._single]

    def hold_all(self, present: list[Process], on: bool) -> dict[str, Any]:
        """Send SIGSTOP to each of these processes, or (not ``on``) SIGCONT to those that this has stopped; what was done."""
        self.holds_all = on
        stopped = [process for process in present if process.state == processes.STOPPED]
        if not on:
            return {"signalled": processes.send_signal(self.others(stopped), signal.SIGCONT)}
        processes.send_signal(_between_vfork_and_exec(present, stopped), signal.SIGCONT)
        return {"signalled": processes.send_signal([item for item in present if item not in stopped], signal.SIGSTOP)}

    def are_held(self, present: list[Process], on: bool) -> tuple[bool, dict[str, Any]]:
        """Are all of these processes stopped (not ``on``: none but those with a signal of their own), with their states."""
        states = {str(process.pid): process.state for process in present}
        stopped = [process for process in present if process.state == processes.STOPPED]
        return bool(stopped) and stopped == present if on else not self.others(stopped), {"states": states}


def _identity(process: Process) -> tuple[int, int]:
    return process.pid, process.start


def _between_vfork_and_exec(present: list[Process], stopped: list[Process]) -> list[Process]:
    """Children that were stopped between vfork and exec: their parents cannot stop before the exec."""
    waiting = {process.pid for process in present if process.state == processes.UNINTERRUPTIBLE}
    return [process for process in stopped if process.ppid in waiting]


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
        #: Those that were signalled last: a process that runs elsewhere stops a moment after its signal.
        self._halted: set[tuple[int, int]] = set()
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
        halted, self._halted = self._halted, set()
        stopped = (
            process for process in self._members() if process.state == processes.STOPPED or _identity(process) in halted
        )
        return processes.send_signal(stopped, signal.SIGCONT)

    def _run(self) -> None:
        self._continue()
        self._timer = self._loop.call_later(PERIOD_S * self._percent / 100, self._halt)

    def _halt(self) -> None:
        members = self._members()
        self._halted = {_identity(process) for process in members}
        processes.send_signal(members, signal.SIGSTOP)
        self._timer = self._loop.call_later(PERIOD_S * (100 - self._percent) / 100, self._run)
