"""The record of one training process: ``watch-r<RANK>-<pid>.jsonl``, one write per line, so that SIGKILL loses no line.

Nothing here raises into the user's code: ``guarded`` records an internal error once and switches that observation off.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from . import thinned_steps

#: 2 once it has ranges.
FORMAT = 1
#: What is no part of the job's state: without it the judge knows less, and what it says is as sure.
MINOR = ("loss", "files")
#: Reasons that are reported for the same part: errors of each save may differ in an address.
MOST = 8
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_F = TypeVar("_F", bound=Callable[..., Any])


def _encoder() -> Any:
    """``encode(value, 0)`` gives the parts of a JSON text. In C it is made once: a new one for each line costs as much as the line."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, level: (json.dumps(value, separators=(",", ":"), default=str),)
    return make(None, str, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)


_encode = _encoder()


def text_of(fields: thinned_steps.Fields) -> bytes:
    """The text of a line, without its sum."""
    return "".join(_encode(fields, 0)).encode(errors="replace")


def boot_id() -> str:
    """The random id that the kernel draws at each boot."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


class Recorder:
    """Appends lines to the record. A process that was forked from the recorded one writes nothing."""

    def __init__(self, directory: str, notify: Callable[..., None] | None = None) -> None:
        """``notify(name, **value)`` reports an event live. Raises OSError."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.pid = os.getpid()
        self.path = Path(directory) / f"watch-r{self.rank}-{self.pid}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._notify = notify
        self.notified_at = 0.0
        #: Observations that are off after an internal error.
        self.off: set[str] = set()
        self._unknown: set[tuple[str, str]] = set()
        self._lock = threading.RLock()
        self._waiting: list[tuple[str, bytes, thinned_steps.Fields]] = []
        self._is_writing = False
        self._sum = 0
        #: The lines that may be replaced by ranges; None after an error.
        self._tail: thinned_steps.Tail | None = thinned_steps.Tail(os.fstat(self._fd).st_size)

    def line(self, kind: str, **fields: Any) -> None:
        """Append one line, as ``write`` does."""
        self.write(kind, fields)

    def write(self, kind: str, fields: thinned_steps.Fields) -> None:
        """Append one line; fields that are None stay, because null means something.

        ``sum``: CRC-32 of the line and all before it, so that a line that was changed or left out shows.
        """
        if os.getpid() != self.pid:
            return
        self.append(kind, text_of({"k": kind, "t": time.monotonic(), **fields}), fields)

    def append(self, kind: str, text: bytes, fields: thinned_steps.Fields) -> None:
        """Append the text of a line, which is without its sum."""
        with self._lock:
            self._waiting.append((kind, text, fields))
            if self._is_writing:  # a signal handler has interrupted a write, which writes this line as well
                return
            self._is_writing = True
            try:
                while self._waiting:
                    kind, text, fields = self._waiting.pop(0)
                    self._sum = zlib.crc32(text, self._sum)
                    os.write(self._fd, b'%s,"sum":"%08x"}\n' % (text[:-1], self._sum))
                    if self._tail is not None:
                        self._tail.add(kind, text, fields)
            finally:
                self._is_writing = False

    def replace_old(self, n: int, offset: int) -> bool:
        """Replace the lines of old steps by ranges, if that is due after ``n`` steps. ``offset``: of steps of the job before them."""
        if self._tail is None or not self._tail.is_due(n) or os.getpid() != self.pid:
            return False
        with self._lock:
            if self._is_writing:
                return False
            self._is_writing = True
            try:
                before, (self._fd, self._sum) = self._fd, self._tail.replace(self.path, n, offset, text_of)
                os.close(before)
            except Exception as error:  # noqa: BLE001 the record goes on as it is
                self._tail = None
                report("ranges", error)
            finally:
                self._is_writing = False
            waiting, self._waiting = self._waiting, []  # of signal handlers
            for line in waiting:
                self.append(*line)
        return self._tail is not None

    def unknown(self, what: str, why: str, *, is_sure: bool = True) -> None:
        """Report once that ``what`` cannot be observed, and record it, unless it may be yet."""
        if (what, why) not in self._unknown:
            self._unknown.add((what, why))
            if is_sure:
                self.line("unknown", what=what, why=why)
            if what not in MINOR and sum(known == what for known, _ in self._unknown) <= MOST:
                self.notify("rank.unobserved", what=what, why=why)

    def notify(self, name: str, **value: Any) -> None:
        """Report an event to the bed, if there is one."""
        if self._notify is not None and os.getpid() == self.pid:
            self._notify(name, **value)
            if name != "rank.step":
                self.notified_at = time.monotonic()


class Draft:
    """Keeps the calls for the record of a process that is no rank yet."""

    def __init__(self) -> None:
        self.pid, self.notified_at = os.getpid(), 0.0
        self.off: set[str] = set()
        self.calls: list[tuple[str, tuple[Any, ...], thinned_steps.Fields]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **fields: self.calls.append((name, tuple(map(_own, values)), fields))


def _own(value: Any) -> Any:
    """A copy of what the caller may change later."""
    return dict(value) if isinstance(value, dict) else value


_recorder: Recorder | Draft | None = None


def begin(directory: str, *, via: str, notify: Callable[..., None] | None = None) -> None:
    """Create the record of this process and write its first line, and those of its draft. Raises OSError."""
    global _recorder
    draft, _recorder = _recorder, Recorder(directory, notify)
    _recorder.write("begin", _process(via))
    if isinstance(draft, Draft):
        _recorder.off |= draft.off
        for name, values, fields in draft.calls:
            getattr(_recorder, name)(*values, **fields)
    else:
        os.register_at_fork(after_in_child=_forget)


def begin_draft() -> None:
    """Keep lines for the record that ``begin`` creates."""
    global _recorder
    _recorder = Draft()
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A forked child is not recorded: its guarded functions do nothing, without asking for the process id at every call."""
    global _recorder
    _recorder = None


def is_active() -> bool:
    """Is this the process that is recorded, and not a child of it?"""
    return _recorder is not None and os.getpid() == _recorder.pid


def line(kind: str, **fields: Any) -> None:
    """Append a line to the record of this process, if it has one."""
    write(kind, fields)


def write(kind: str, fields: thinned_steps.Fields) -> None:
    """Append a line with these fields, which are not copied."""
    if _recorder is not None:
        _recorder.write(kind, fields)


def replace_old(n: int, offset: int) -> bool:
    """Replace the lines of old steps by ranges, if that is due; whether it was."""
    return _recorder is not None and _recorder.replace_old(n, offset)


def unknown(what: str, why: str, *, is_sure: bool = True) -> None:
    """Report once that ``what`` cannot be observed, and record it, unless it may be yet."""
    if _recorder is not None:
        _recorder.unknown(what, why, is_sure=is_sure)


def notify(name: str, **value: Any) -> None:
    """Report an event to the bed, if there is one."""
    if _recorder is not None:
        _recorder.notify(name, **value)


def notified_at() -> float:
    """CLOCK_MONOTONIC seconds of the last event that was not a step; 0 before the first one."""
    return _recorder.notified_at if _recorder is not None else 0.0


class _CpuTime(threading.local):
    """The CPU time of this thread inside of guarded functions; of nested ones that of the outermost."""

    used_s = 0.0
    is_inside = False


_cpu = _CpuTime()
#: Sets what evaluates frames in place of Python, and returns what did so. Torch has one for torch.compile, once it is imported.
_set_eval_frame: Callable[[Any], Any] = lambda callback: None  # noqa: E731


def stay_out_of(set_eval_frame: Callable[[Any], Any]) -> None:
    """Guarded functions are not compiled by torch.compile, although the user's compiled function calls them."""
    global _set_eval_frame
    _set_eval_frame = set_eval_frame


def cpu_s() -> float:
    """Seconds of CPU time that the watcher has used in this thread."""
    return round(_cpu.used_s, 6)


def guarded(where: str) -> Callable[[_F], _F]:
    """A decorator for functions that run inside the user's code: they return None instead of raising.

    After an error the functions with the same ``where`` are off: readers treat what they observe as unknown.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _recorder is None or where in _recorder.off:
                return None
            is_nested, _cpu.is_inside = _cpu.is_inside, True
            callback, begin = (None, 0.0) if is_nested else (_set_eval_frame(None), time.thread_time())
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 the user's script goes on
                report(where, error)
                return None
            finally:
                if not is_nested:
                    _cpu.used_s += time.thread_time() - begin
                    _cpu.is_inside = False
                    _set_eval_frame(callback)

        return wrapper  # type: ignore[return-value]

    return decorate


def switched_off() -> set[str]:
    """The observations that are off after an internal error."""
    return _recorder.off if _recorder is not None else set()


def report(where: str, error: BaseException) -> None:
    """Record an internal error and switch the observation ``where`` off."""
    if _recorder is None or where in _recorder.off:
        return
    _recorder.off.add(where)
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    position = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}: " if trace else ""
    try:
        text = f"{position}{type(error).__name__}: {error}"[:500]
        _recorder.line("problem", where=where, error=text)
        _recorder.unknown(where, f"an error of the watcher, {text}", is_sure=False)
    except OSError:  # a full disk: the record ends here
        pass


def _process(via: str) -> thinned_steps.Fields:
    """The fields of the first line."""

    def number(name: str, default: int) -> int:
        value = os.environ.get(name, "")
        return int(value) if value.isdigit() else default

    return {
        "format": FORMAT,
        "rank": number("RANK", 0),
        "world": number("WORLD_SIZE", 1),
        "local_rank": number("LOCAL_RANK", 0),
        "attempt": number("CCBED_EPOCH", 0),
        "restart": number("TORCHELASTIC_RESTART_COUNT", 0),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": boot_id(),
        "wall": time.time(),
        "python": sys.version.split()[0],
        "argv0": sys.argv[0] if getattr(sys, "argv", None) else "",
        "run": os.environ.get("CCBED_RUN"),
        "node": os.environ.get("CCBED_NODE_NAME"),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
        "via": via,
    }
