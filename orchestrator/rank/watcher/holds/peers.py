"""Shows that this rank waits for another one that is held: its main thread stands still and uses no CPU time."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import FrameType

from .. import record, steps
from . import worker

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
