"""Inspects the ranks of a gang: whether they work, and where in their code they stand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ...model.events.commands import GangInspectDone
from ..files import plain_files
from ..oslayer import processes
from ..oslayer.event_loop import Loop

WINDOW_S = 1.0
#: How long the stacks may take.
STACKS_S = 0.5
PY_SPY_S = 5.0
#: A rank that uses less CPU and moves fewer bytes within the window stands still.
IDLE_CPU_S, IDLE_BYTES = 0.02, 4096
LARGEST = 1 << 18
FRAMES = 12
_TICKS = os.sysconf("SC_CLK_TCK")
_FAULTHANDLER = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<function>\S+)')
_PY_SPY = re.compile(r"    (?P<function>\S+) \((?P<file>.+):(?P<line>\d+)\)")


@dataclass(kw_only=True)
class _Rank:
    """A rank that is inspected. ``before``: CPU seconds and bytes at the beginning."""

    pid: int
    log: Path
    before: tuple[float, int]
    cpu_s: float = 0.0
    moved: int = 0
    log_size: int = 0
    py_spy: tuple[subprocess.Popen[bytes], IO[bytes]] | None = field(default=None)

    @property
    def is_idle(self) -> bool:
        return self.cpu_s < IDLE_CPU_S and self.moved < IDLE_BYTES


def inspect(
    loop: Loop, ranks: Mapping[int, tuple[int, Path]], *, stacks: bool, respond: Callable[[GangInspectDone], None]
) -> None:
    """Observe the ranks for ``WINDOW_S``, then take the stacks of those that are idle, or with ``stacks`` of all.

    ``ranks``: rank -> its pid, and the file into which its ``faulthandler`` writes.
    """
    watched = {rank: _Rank(pid=pid, log=log, before=_activity(pid)) for rank, (pid, log) in ranks.items()}

    def measure() -> None:
        for rank in watched.values():
            cpu_s, moved = _activity(rank.pid)
            rank.cpu_s, rank.moved = max(0.0, cpu_s - rank.before[0]), max(0, moved - rank.before[1])
            if stacks or rank.is_idle:
                _request_stack(rank)
        has_py_spy = any(rank.py_spy for rank in watched.values())
        loop.call_later(PY_SPY_S if has_py_spy else STACKS_S, finish)

    def finish() -> None:
        respond(
            GangInspectDone(
                window_s=WINDOW_S,
                cpu_s={str(number): round(rank.cpu_s, 3) for number, rank in watched.items()},
                bytes={str(number): rank.moved for number, rank in watched.items()},
                states={str(number): _state(rank.pid) for number, rank in watched.items()},
                stacks={str(number): _stack(rank) for number, rank in watched.items()},
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


def _request_stack(rank: _Rank) -> None:
    """Ask py-spy where it is installed, else the rank itself by SIGUSR1, for which it has a handler of ``faulthandler``."""
    program = shutil.which("py-spy")
    with suppress(OSError):
        if program:
            output = tempfile.TemporaryFile()  # noqa: SIM115 read and closed by _stack
            argv = [program, "dump", "--nonblocking", "--pid", str(rank.pid)]
            rank.py_spy = (subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output), output)
        elif _handles_signal(rank.pid, signal.SIGUSR1):
            rank.log_size = rank.log.stat().st_size
            os.kill(rank.pid, signal.SIGUSR1)


def _handles_signal(pid: int, number: int) -> bool:
    """A process that has no handler for the signal would be ended by it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def _stack(rank: _Rank) -> tuple[str, ...]:
    """The innermost frames of the main thread, each as ``FILE:LINE FUNCTION``; empty if they are not known."""
    with suppress(OSError):
        if rank.py_spy:
            process, output = rank.py_spy
            process.kill()
            with output:
                output.seek(0)
                return _main_thread(output.read(LARGEST).decode(errors="replace"), _PY_SPY)
        if rank.log_size:
            added = plain_files.read_tail(rank.log, min(LARGEST, rank.log.stat().st_size - rank.log_size))
            return _main_thread(added.decode(errors="replace"), _FAULTHANDLER)
    return ()


def _main_thread(text: str, form: re.Pattern[str]) -> tuple[str, ...]:
    """``faulthandler`` and py-spy list threads from the newest to the oldest, or name the main thread."""
    threads = [part for part in re.split(r"(?m)^(?=(?:Current t|T)hread )", text) if form.search(part)]
    named = [part for part in threads if "MainThread" in part.partition("\n")[0]]
    part = next(iter(named or threads[-1:]), "")
    frames = [f"{match['file']}:{match['line']} {match['function']}" for match in form.finditer(part)]
    return tuple(frames[:FRAMES])
