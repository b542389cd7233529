"""Holds this process at the points of planned faults, and follows the orders that arrive while it runs or is held.

A rank that waits for a held one reports it: its main thread stands still and uses no CPU time. SIGTERM to a held rank whose script
handles it ends the hold: the script wants to save.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .. import record, steps
from . import acts, worker

#: Points that belong to no step: the process counts how often it passes each of them.
UNCOUNTED = ("save", "save-during", "save-after", "load")
#: Seconds. The limit is counted in slices, so that the time for which the process itself is stopped does not count.
SLICE_S = 0.005
#: The keeper reports its order in this time; a process that goes on earlier would seem to be ahead of it.
ACT_S = 0.1
#: A fault that comes later than it was ordered costs so many steps at least, where its order wanted as many.
REDONE = 2


class Hold:
    """A point at which rank ``rank`` stops. ``is_late``: ordered while the process runs; a later step is as good."""

    def __init__(self, fields: dict[str, Any], is_late: bool = False) -> None:
        self.id, self.rank, self.phase = str(fields["id"]), int(fields["rank"]), str(fields["phase"])
        self.step, self.limit_s = int(fields.get("step") or 0), float(fields.get("limit_s") or 10.0)
        self.nth, self.is_late = int(fields.get("nth") or 1), is_late
        self._saved_at, self._saves_every = int(fields.get("saved_at") or 0), int(fields.get("saves_every") or 0)

    def is_at(self, phase: str, step: int, passes: int) -> bool:
        if phase != self.phase:
            return False
        if phase in UNCOUNTED:
            return passes == self.nth
        return step == self.step or (self.is_late and step > self.step and self._costs_steps(step))

    def _costs_steps(self, step: int) -> bool:
        """Return whether a fault in ``step``, past the step of the order, makes the job train steps again:
        a checkpoint may just be written.
        """
        if self._saves_every < 1:
            return True
        return (step - self._saved_at) % self._saves_every >= min(self.step - self._saved_at, REDONE)


class Holds:
    """The holds of this process. ``reached`` is called at the points of ``points.py``."""

    def __init__(self, directory: str, watch: Callable[[str], None]) -> None:
        """``watch(phase)`` makes the process call ``reached`` at the points of that phase."""
        self._directory, self._watch = directory, watch
        self._worker = worker.find()
        self.rank = self._worker.number
        self._orders = acts.Orders(directory, self._worker.orders, skips_earlier=self._worker.is_launched)
        self._open: list[Hold] = []
        self._known: set[str] = set()
        self._released: set[str] = set()
        self._passes: Counter[str] = Counter()

    def add(self, hold: Hold) -> None:
        """Wait for the point of a hold; for that of another rank, report when this rank waits for it."""
        if hold.id in self._known:
            return
        self._known.add(hold.id)
        if hold.rank == self.rank:
            self._open.append(hold)
            self._watch(hold.phase)
        elif hold.phase not in UNCOUNTED:
            report_waiting(hold.id, hold.phase, hold.step, limit_s=3600.0)

    def reached(self, phase: str) -> BaseException | None:
        """Stop here if a hold asks for it; the exception that an act wants to raise in the script."""
        self._passes[phase] += 1
        if not self._open:
            return None
        step = 0 if phase in UNCOUNTED else steps.completed() + 1
        for hold in [hold for hold in self._open if hold.is_at(phase, step, self._passes[phase])]:
            self._open.remove(hold)
            if self._worker.is_launched and not self._claim(hold):
                continue
            error = self._wait(hold, step)
            if error is not None:
                return error
        return None

    def is_idle(self) -> bool:
        """Does this process wait for no hold and no act, and are there no new orders?"""
        return not self._open and not acts.is_waiting() and not self._orders.is_due()

    def follow_orders(self) -> BaseException | None:
        """Read and follow new orders; the exception that an act wants to raise in the script."""
        for order in self._orders.read():
            if "hold" in order:
                self.add(Hold(order["hold"], is_late=True))
            elif "release" in order:
                self._released.add(str(order["release"]))
            elif "act" in order:
                error = self._act(order["act"])
                if error is not None:
                    return error
        return None

    def _act(self, act: dict[str, Any]) -> BaseException | None:
        """Perform an act; the workers of a launcher on one node share their orders."""
        if self._worker.is_launched and int(act.get("local_rank") or 0) != self._worker.local_rank:
            return None
        return acts.perform(act, self._directory, self._worker.orders)

    def _claim(self, hold: Hold) -> bool:
        """Return whether no earlier process of this attempt was held for it: a launcher starts its workers with the same holds again."""
        path = Path(self._directory) / f"held-{hold.id.replace(os.sep, '_')}-r{hold.rank}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    def _is_over(self, hold: Hold, error: BaseException | None) -> bool:
        """An act that raises, or that waits for the process to go on, ends the hold as well."""
        return hold.id in self._released or error is not None or acts.is_waiting()

    def _wait(self, hold: Hold, step: int) -> BaseException | None:
        """Stop here. Returns what is to be raised in the script."""
        begin, counted = time.monotonic(), 0.0
        error: BaseException | None = None
        with Notice() as received:
            self._report_held(hold, step)
            while not self._is_over(hold, error) and not received.has_arrived and counted < hold.limit_s:
                time.sleep(SLICE_S)
                counted += SLICE_S
                error = self.follow_orders()
        error = error or received.error
        is_released = received.has_arrived or self._is_over(hold, error)
        if acts.is_waiting():
            time.sleep(ACT_S)
        seconds = round(time.monotonic() - begin, 3)
        record.line("released", hold=hold.id, where=hold.phase, n=steps.completed(), seconds=seconds)
        record.notify("rank.released" if is_released else "hold.expired", rank=self.rank, hold=hold.id, held_s=seconds)
        return error

    def _report_held(self, hold: Hold, step: int) -> None:
        is_exact = _synchronise()
        record.line("held", hold=hold.id, where=hold.phase, n=steps.completed(), exact=is_exact)
        record.notify("rank.held", rank=self.rank, step=step, phase=hold.phase, hold=hold.id, exact=is_exact)


def planned() -> list[Hold]:
    """The holds that were known when this process was started."""
    return [Hold(fields) for fields in json.loads(os.environ.get("CCBED_WATCH_HOLDS") or "[]")]


def _synchronise() -> bool:
    """Wait for the device: what Python has issued may not have run yet. False: it cannot be known where the device is."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return True
    try:  # to wait while a CUDA graph is captured would invalidate it
        return not torch.cuda.is_current_stream_capturing() and torch.cuda.synchronize() is None
    except RuntimeError:
        return False


class Notice:
    """Knows, while it is entered, whether the script's own handler of SIGTERM was called. ``error``: what that raised."""

    def __init__(self) -> None:
        self.has_arrived = False
        self.error: Exception | None = None
        self._handler: Any = None

    def __enter__(self) -> Notice:
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, self._handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.has_arrived = True
        try:
            self._handler(number, frame)
        except Exception as error:  # noqa: BLE001 raised in the script, once the hold is over
            self.error = error


#: Seconds between two looks at the main thread, and for how long it must not move.
PAUSE_S, STILL_S = 0.01, 0.05
#: CPU time of the main thread that still counts as waiting, as a part of ``STILL_S``.
BUSY_SHARE = 0.2
FRAMES = 6


def report_waiting(hold: str, phase: str, step: int, limit_s: float) -> None:
    """Report ``rank.inside`` with the stack of this rank once it stands still in that step, or a later one."""
    thread = threading.Thread(target=_report, args=(hold, phase, step, limit_s), name="ccbed-peer", daemon=True)
    thread.start()


def _report(hold: str, phase: str, step: int, limit_s: float) -> None:
    main, rank = threading.main_thread().ident, worker.find().number
    if main is None or rank is None:
        return
    clock = time.pthread_getcpuclockid(main)
    until = time.monotonic() + limit_s
    still_since, used, position = time.monotonic(), time.clock_gettime(clock), None
    while time.monotonic() < until and record.is_active():
        time.sleep(PAUSE_S if steps.completed() + 1 >= step else 5 * PAUSE_S)
        now, cpu, current = time.monotonic(), time.clock_gettime(clock), _position(main)
        if current != position or steps.completed() + 1 < step or cpu - used > BUSY_SHARE * STILL_S:
            still_since, used, position = now, cpu, current
        elif now - still_since >= STILL_S:
            frame = sys._current_frames().get(main)
            record.notify(
                "rank.inside", rank=rank, step=steps.completed() + 1, phase=phase, hold=hold, stack=_stack(frame)
            )
            return


def _position(thread: int) -> tuple[object, ...] | None:
    frame: FrameType | None = sys._current_frames().get(thread)
    places = []
    while frame is not None:
        places.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return tuple(places)


def _stack(frame: FrameType | None) -> list[str]:
    """The innermost functions, as ``file:line function``."""
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES:
        code = frame.f_code
        lines.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return lines
