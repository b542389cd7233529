"""Which act has stopped which processes of a node: one act stops all of them, others stop single ones; each undoes its own stop."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import Any

from . import processes
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
