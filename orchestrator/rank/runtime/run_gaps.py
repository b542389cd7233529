"""Records when this process did not run: a thread that sleeps a few milliseconds at a time notes when it woke far too late.

A process that is stopped (SIGSTOP), has used up its CPU quota, or waits for a busy CPU runs none of its threads. The time
that the thread waited for a CPU while it was runnable (``run_delay`` of schedstat) tells the last two cases from the first,
and the time for which the kernel throttled the process's cgroup (``cpu.stat``) tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType

#: A hundred wake-ups per second take about 0.5 % of a CPU.
PERIOD_S = 0.01
#: A shorter gap is what a sleep may take on a busy machine.
LEAST_S = 0.02
#: The thread begins within this time unless the machine is starved; then the gaps begin later.
START_S = 1.0
#: Once the process runs again, the thread gets a CPU within this time unless all are busy.
AWAKE_S = 0.1
#: The throttled time is read this often, and after each gap.
THROTTLED_S = 0.1
#: A process that used more than this part of a gap as CPU time has run in it.
_RAN = 0.2
#: start, end (CLOCK_MONOTONIC), seconds of it in which the thread was runnable, was not throttled, and waited for a CPU
Gap = tuple[float, float, float]


def is_gap(elapsed_s: float, cpu_s: float) -> bool:
    """Return whether a process that used so much CPU time in a period did not run in it."""
    return elapsed_s >= LEAST_S and cpu_s < _RAN * elapsed_s


class RunGaps:
    """A context manager; ``take`` returns the gaps of a period. A gap is recorded up to PERIOD_S longer than it was."""

    def __init__(self) -> None:
        self._gaps: list[Gap] = []
        #: Notified when a period ends, or the first one begins; its lock guards the gaps.
        self._ended = threading.Condition()
        self._schedstat = -1
        #: CLOCK_MONOTONIC, CPU time of the process and run delay of the thread, where the last period ended.
        self._before: tuple[float, float, float] | None = None
        #: CLOCK_MONOTONIC, and the throttled time of the cgroup then.
        self._throttled = (0.0, 0.0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="run-gaps", daemon=True)

    def __enter__(self) -> RunGaps:
        with self._ended:
            self._thread.start()
            self._ended.wait_for(lambda: self._before is not None, START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()

    def take(self, start: float, end: float) -> list[Gap]:
        """The gaps that overlap this period; earlier ones are forgotten.

        A gap that has just ended is among them. How long the thread waited for a CPU in it is known when it runs again, which is
        waited for: the kernel counts that time only then. If it does not run, the CPUs are busy.
        """
        with self._ended:
            if not self._ended.wait_for(lambda: not self._is_in_gap(), AWAKE_S):
                self._end_period(is_waiting=True)
        while self._gaps and self._gaps[0][1] <= start:
            del self._gaps[0]  # the list stays the same: the thread appends to it
        return [gap for gap in list(self._gaps) if gap[0] < end]

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            self._schedstat = _open_schedstat(stack)
            with self._ended:
                self._before = self._now()
                self._throttled = self._before[0], throttled_s()
                self._ended.notify_all()
            while not self._is_over.is_set():
                time.sleep(PERIOD_S)
                with self._ended:
                    self._end_period()
                    self._ended.notify_all()
            with self._ended:
                self._before = None
                self._ended.notify_all()

    def _is_in_gap(self) -> bool:
        """Return whether the present period is a gap, as far as it has gone."""
        if self._before is None:
            return False
        gap_s, cpu_s, _ = _differences(self._before, self._now())
        return is_gap(gap_s, cpu_s)

    def _end_period(self, *, is_waiting: bool = False) -> None:
        """Record the period since the last call, if this process did not run in it. ``is_waiting``: the thread waited in all of it."""
        if (before := self._before) is None:
            return
        self._before = now = self._now()
        gap_s, cpu_s, delay_s = _differences(before, now)
        if is_gap(gap_s, cpu_s):
            waited_s = (gap_s if is_waiting else delay_s) - self._throttled_since(now[0])
            self._gaps.append((before[0], now[0], max(0.0, waited_s)))
        elif now[0] - self._throttled[0] >= THROTTLED_S:
            self._throttled_since(now[0])

    def _throttled_since(self, now: float) -> float:
        """Seconds for which the cgroup was throttled since the last call; a cgroup that the process was moved into is new."""
        before, self._throttled = self._throttled, (now, throttled_s())
        return max(0.0, self._throttled[1] - before[1])

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), _run_delay(self._schedstat)


def _differences(before: tuple[float, float, float], now: tuple[float, float, float]) -> tuple[float, float, float]:
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


def _open_schedstat(stack: contextlib.ExitStack) -> int:
    """A descriptor of this thread's schedstat; -1 where the kernel has none."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    stack.callback(os.close, descriptor)
    return descriptor


def _run_delay(descriptor: int) -> float:
    """Seconds that this thread was runnable and waited for a CPU, so far: the second field, in nanoseconds."""
    if descriptor < 0:
        return 0.0
    fields = os.pread(descriptor, 100, 0).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def throttled_s(system: Path = Path("/")) -> float:
    """Seconds for which CPUs were withheld from this process's cgroup since it used up its quota, so far."""
    known = cpu_statistics(system)
    return known.get("throttled_usec", 0) / 1e6 + known.get("throttled_time", 0) / 1e9


def cpu_statistics(system: Path) -> dict[str, int]:
    """``cpu.stat`` of the cgroup of this process (version 2, or 1); empty where it is not visible."""
    with contextlib.suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = system / "sys/fs/cgroup" / ("cpu" if controllers else "")
            folder = root / path.lstrip("/")
            file = (folder if folder.is_dir() else root) / "cpu.stat"
            if (not controllers or "cpu" in controllers.split(",")) and file.exists():
                return {name: int(value) for name, value in map(str.split, file.read_text().splitlines())}
    return {}
