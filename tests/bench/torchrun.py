"""torchrun at its best, and what it takes to come back after kill -9 of one of its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orchestrator

PROGRAMS = Path(__file__).parent / "programs"
DIGITS = Path(orchestrator.__file__).parent / "data" / "digits"
RANKS = 4
#: Without it gloo meets the keys of the attempt before in the store that outlives restarts, and most restarts fail.
ENV = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
BEST = ("--standalone", "--nproc-per-node", str(RANKS), "--max-restarts=3", "--monitor-interval", "0.1")
LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A step that a rank completed: when (CLOCK_MONOTONIC seconds), in which attempt, by which process."""

    attempt: int
    step: int
    t: float
    pid: int


def command(program: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *BEST, str(program), *args]


def environment() -> dict[str, str]:
    return {**os.environ, **ENV}


def whole(program: Path) -> float:
    """Seconds from argv to exit of a program under torchrun."""
    begin = time.monotonic()
    subprocess.run(command(program), env=environment(), check=True, capture_output=True, timeout=LIMIT_S)
    return time.monotonic() - begin


def back_after_kill(folder: Path, victim: int = 2, at: int = 30) -> float:
    """Seconds from the return of kill -9 to the last rank's first completed step of the next attempt."""
    folder.mkdir(parents=True)
    args = ("--dir", str(folder), "--data", str(DIGITS))
    with _running(command(PROGRAMS / "torchrun_train.py", *args), folder / "torchrun.log"):
        _wait(folder, lambda rank: any(mark.step >= at for mark in marks(folder, rank)))
        os.kill(marks(folder, victim)[-1].pid, signal.SIGKILL)
        killed = time.monotonic()
        _wait(folder, lambda rank: any(mark.attempt > 0 for mark in marks(folder, rank)))
        return max(_first(folder, rank) for rank in range(RANKS)) - killed


def marks(folder: Path, rank: int) -> list[Mark]:
    """The whole lines of a rank's file."""
    file = folder / f"marks-{rank}"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    fields = (line.split() for line in lines)
    return [Mark(attempt=int(a), step=int(s), t=float(t), pid=int(p)) for a, s, t, p in fields]


def _first(folder: Path, rank: int) -> float:
    return next(mark.t for mark in marks(folder, rank) if mark.attempt > 0)


def _wait(folder: Path, done: Callable[[int], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not all(done(rank) for rank in range(RANKS)):
        if time.monotonic() > limit:
            raise TimeoutError((folder / "torchrun.log").read_text()[-4000:])
        time.sleep(0.02)


@contextmanager
def _running(argv: list[str], log: Path) -> Iterator[None]:
    """Ended by SIGTERM, upon which torchrun ends its workers; if it does not, its process group is killed."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=environment(), stdout=out, stderr=out, start_new_session=True)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
