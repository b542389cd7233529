"""Inspects the ranks of a gang: whether they work, and where in their code they stand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ...model.events.commands import GangInspectDone
from ...model.frozen import dataclass
from ..oslayer import processes
from ..oslayer.event_loop import Loop
from . import stacks as rank_stacks

WINDOW_S = 1.0
#: A rank that uses less CPU and moves fewer bytes within the window stands still.
IDLE_CPU_S, IDLE_BYTES = 0.02, 4096
FRAMES = 12
_TICKS = os.sysconf("SC_CLK_TCK")
_FORMS = (
    re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<function>\S+)'),  # faulthandler
    re.compile(r"    (?P<function>\S+) \((?P<file>.+):(?P<line>\d+)\)"),  # py-spy
)


@dataclass(kw_only=True)
class _Rank:
    """A rank that is inspected. ``before``: CPU seconds and bytes at the beginning."""

    pid: int
    before: tuple[float, int]
    cpu_s: float = 0.0
    moved: int = 0

    @property
    def is_idle(self) -> bool:
        return self.cpu_s < IDLE_CPU_S and self.moved < IDLE_BYTES


def inspect(loop: Loop, pids: Mapping[int, int], *, stacks: bool, respond: Callable[[GangInspectDone], None]) -> None:
    """Observe the ranks for ``WINDOW_S``, then take the stacks of those that are idle, or with ``stacks`` of all. ``pids``: by rank."""
    watched = {rank: _Rank(pid=pid, before=_activity(pid)) for rank, pid in pids.items()}

    def measure() -> None:
        for rank in watched.values():
            cpu_s, moved = _activity(rank.pid)
            rank.cpu_s, rank.moved = max(0.0, cpu_s - rank.before[0]), max(0, moved - rank.before[1])
        wanted = {number: rank.pid for number, rank in watched.items() if stacks or rank.is_idle}
        rank_stacks.take(loop, wanted, finish)

    def finish(requests: Mapping[int, rank_stacks.Request]) -> None:
        taken = {number: main_thread(request.read()) for number, request in requests.items()}
        respond(
            GangInspectDone(
                window_s=WINDOW_S,
                cpu_s={str(number): round(rank.cpu_s, 3) for number, rank in watched.items()},
                bytes={str(number): rank.moved for number, rank in watched.items()},
                states={str(number): _state(rank.pid) for number, rank in watched.items()},
                stacks={str(number): taken.get(number, ()) for number in watched},
                no_stack={str(number): request.problem for number, request in requests.items() if request.problem}
                or None,
            )
        )

    loop.call_later(WINDOW_S, measure)


def _activity(pid: int) -> tuple[float, int]:
    """CPU seconds of a process and its descendants, and the bytes that they have read and written."""
    pids = [pid, *(process.pid for process in processes.descendants(pid))]
    return sum(map(_cpu_s, pids)), sum(map(_moved, pids))


def _cpu_s(pid: int) -> float:
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _moved(pid: int) -> int:
    with suppress(OSError, ValueError):
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(fields["rchar"]) + int(fields["wchar"])
    return 0


def _state(pid: int) -> str:
    process = processes.find(pid)
    return process.state if process else "X"


def main_thread(text: str) -> tuple[str, ...]:
    """The innermost frames of the main thread, each as ``FILE:LINE FUNCTION``; empty if they are not known.

    ``faulthandler`` and py-spy list threads from the newest to the oldest, or name the main thread.
    """
    threads = [part for part in re.split(r"(?m)^(?=(?:Current t|T)hread )", text) if any(_frames(part))]
    named = [part for part in threads if "MainThread" in part.partition("\n")[0]]
    part = next(iter(named or threads[-1:]), "")
    return tuple(_frames(part))[:FRAMES]


def _frames(text: str) -> Iterable[str]:
    matches = (match for form in _FORMS for match in form.finditer(text))
    return (f"{match['file']}:{match['line']} {match['function']}" for match in matches)
