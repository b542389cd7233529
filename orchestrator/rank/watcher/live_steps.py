"""Reports what a bed learns at once: that this rank has joined, its first step, and its newest step.

The newest step is reported often at first, and around what else happens to the rank; later each ten seconds, so that the history
of a week stays small.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from typing import Any

from . import importlib_bootstrap, imports, record, steps
from .budget import budget
from .holds import stack_signal, worker

#: Seconds between two reports of the newest step: of rank 0, and of the others. For so many seconds after the first step, and after
#: another event of the rank.
PAUSES_S = (0.5, 2.0)
AT_FIRST_S, AFTER_EVENT_S = 60.0, 5.0
#: The same at all other times, unless the run waits for a fault or a step.
LATER_S = 10.0
_OF_WORKERS = ("rank.held", "rank.inside", "rank.released", "hold.expired", "rank.unobserved")


class EventFile:
    """The bed's file of events of a rank, for a process that the rank's program has started; with a writer name of its own."""

    def __init__(self, path: str) -> None:
        """Raises OSError and KeyError outside of a bed."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._worker, self._epoch = worker.find(), int(os.environ["CCBED_EPOCH"])
        self._rank = self._worker.number
        self._source = {
            "node": os.environ["CCBED_NODE_NAME"],
            "incarnation": os.environ["CCBED_INCARNATION"],
            "writer": f"watch-{self._worker.orders}-{os.getpid()}.e{self._epoch}",
        }
        self._boot = record.boot_id()
        self._n = 0
        self._lock = threading.Lock()

    def emit(self, name: str, **value: Any) -> None:
        """Append one event. Steps and saves of a launcher's workers are reported by the process that runs the launcher."""
        if self._rank is None or (self._worker.is_launched and name not in _OF_WORKERS):
            return
        with self._lock:
            self._n += 1
            event = {
                "type": "note", "f": name, "node": self._source["node"], "epoch": self._epoch,
                "value": {"rank": self._rank, **value},
                "at": {"boot": self._boot, "mono": time.monotonic(), "wall": time.time()},
                "source": {**self._source, "n": self._n},
            }  # fmt: skip
            os.write(self._fd, json.dumps(event, separators=(",", ":")).encode() + b"\n")


class Pauses:
    """The seconds that pass between two reports of the newest step: ``often_s``, or ``LATER_S``."""

    def __init__(self, often_s: float) -> None:
        self._often_s = often_s
        self._often_until: float | None = None
        self._is_awaited = "CCBED_STEPS_AWAITED" in os.environ

    def choose(self, now: float, event_at: float) -> tuple[float, dict[str, float]]:
        """The pause, and what a report says of it. ``event_at``: when something else was reported; CLOCK_MONOTONIC seconds."""
        if self._often_until is None:
            self._often_until = now + AT_FIRST_S
        if self._is_awaited or now < max(self._often_until, event_at + AFTER_EVENT_S):
            return self._often_s, {}
        return LATER_S, {"pause_s": LATER_S}


class SaveReports:
    """Chooses the saves that a bed is told of: a checkpoint's first file; one after each pause if it has many or steps are not known."""

    def __init__(self) -> None:
        self._times: dict[object, float] = {}

    def is_new(self, moment: object) -> bool:
        """Is a save reported at this ``moment``, such as the number of completed steps?"""
        now = time.monotonic()
        if moment in self._times and now - self._times[moment] < LATER_S:
            return False
        self._times = {key: at for key, at in self._times.items() if now - at < LATER_S} | {moment: now}
        return True


class Progress:
    """Reports the steps of this process."""

    def __init__(self) -> None:
        self._reported: float | None = None
        self._least_s = PAUSES_S[os.environ.get("RANK", "0") != "0"]
        self._pauses = Pauses(self._least_s)

    def report(self) -> None:
        """A step is complete: report the first one, and later ones after a pause. It adds no field to the step's line."""
        now = time.monotonic()
        if self._reported is not None and now - self._reported < self._least_s:
            return
        pause_s, later = self._pauses.choose(now, record.notified_at())
        if self._reported is None or now - self._reported >= pause_s:
            mark = "first" if self._reported is None else "newest"
            self._reported = now
            stack_signal.verify()
            before = max(0, int(budget.offset))
            record.notify("rank.step", step=steps.completed(), mark=mark, pid=os.getpid(), offset=before, **later)


def watch() -> None:
    """Report the first process group that this process joins."""
    imports.when_imported("torch.distributed.distributed_c10d", _watch_joining)


def begin() -> None:
    """Report the steps of this rank, as its environment asks for."""
    steps.measure("live", Progress().report)


@record.guarded("joined")
def _watch_joining(c10d: Any) -> None:
    original = c10d.init_process_group

    def finish(observation: None, result: Any, error: BaseException | None) -> None:
        if error is None:
            _record_joined(c10d)

    init_process_group = importlib_bootstrap.observe(original, _report_joining, finish)
    modules: tuple[Any, ...] = (c10d, importlib.import_module("torch.distributed"))
    for module in modules:
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group


@record.guarded("joining")
def _report_joining(args: tuple[Any, ...], kwargs: Any) -> None:
    """Report the first call: where ranks look for each other shows why they do not meet."""
    if _joined or _joining:
        return
    call = dict(zip(("backend", "init_method", "timeout", "world_size", "rank", "store"), args), **kwargs)
    number, world = (call.get(name, -1) for name in ("rank", "world_size"))
    _joining.append(number)
    if number == -1:
        number = os.environ.get("RANK")
    if world == -1:
        world = os.environ.get("WORLD_SIZE")
    store = None if call.get("store") is not None else _store(call.get("init_method") or "env://")
    facts = {"number": _whole(number), "world": _whole(world), "store": store}
    record.notify("rank.joining", **{name: value for name, value in facts.items() if value is not None})


def _store(method: str) -> str | None:
    """``HOST:PORT`` of the store that a method of ``init_process_group`` names."""
    scheme, _, place = method.partition("://")
    if scheme == "env":
        return ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return place.partition("?")[0] if scheme == "tcp" else None


def _whole(value: Any) -> int | None:
    return int(value) if str(value).isdecimal() else None


@record.guarded("joined")
def _record_joined(c10d: Any) -> None:
    backend, world, rank = c10d.get_backend(), c10d.get_world_size(), c10d.get_rank()
    record.line("joined", backend=backend, world=world, rank=rank)
    if not _joined:
        _joined.append(rank)
        record.notify("rank.joined", world=world, backend=backend)


#: The ranks with which this process first asked to join, and joined, a process group.
_joining: list[Any] = []
_joined: list[int] = []
