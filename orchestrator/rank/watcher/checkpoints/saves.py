"""The life of a save: called, staged, durable, committed. Adapters report the calls of one library each.

*Committed* is what the system that saves counts itself: the return of a save to its final name, the rename of a temporary name, DCP's
``.metadata``, a tracker such as ``latest``. A ``committed`` line is written at once, and again with the SHA-256 when that is known.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import record, steps
from ..live_steps import SaveReports
from . import file_hashes, saved_contents, trackers
from .buffers import Buffers

#: Saves whose paths are remembered for later renames.
REMEMBERED = 8192
#: Of more saves that wait, each further save looks at so many: a checkpoint may have thousands of files.
MANY, PER_SAVE = 64, 8
#: A process that saves more often without a recognised model is not observed further: it saves samples, not checkpoints.
MAX_UNRECOGNISED = 1000
#: Backward passes after which a job that saves should have made a step.
UNSEEN = 64
#: A name of a file or of its directory that is renamed when the save is complete.
TEMPORARY = re.compile(
    r"(^|[._-])(te?mp|partial|incomplete|part|new|saving|unfinished)([._-]|\d|$)|^tmp|\.tmp", re.IGNORECASE
)
DIGITS = re.compile(r"\d+")
STAGES = ("before", "during", "after", "committed")

hashes = file_hashes.HashThread()
_lock = threading.RLock()
_thread_state = threading.local()
_observers: dict[str, list[Callable[[int], None]]] = {stage: [] for stage in STAGES}


class Save:
    """One save that was called."""

    def __init__(self, api: str, path: str, n: int) -> None:
        self.id = next(_registry.ids)
        self.api, self.path, self.n = api, path, n
        self.called = time.monotonic()
        self.reading: Reading | None = None
        self.returned: float | None = None
        self.how = ""
        self.is_in_middle = False
        self.committed: float | None = None
        #: The file object of the script, while it may still be open.
        self.stream: Any = None
        #: The file or link that will name this checkpoint, if the job has one.
        self.tracker: str | None = None
        #: A path that is not final: the save counts once it is renamed, or at the next step if it is not.
        self.is_temporary = bool(path) and is_temporary(path)


class Reading:
    """The contents of a save: digested beside the save itself, in a thread; on CUDA in the caller's thread, in the order of its stream."""

    def __init__(self, value: Any) -> None:
        self._contents: saved_contents.Contents | None = None
        self._error: Exception | None = None
        try:
            self._contents = saved_contents.recognise(value)
            if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
                self._contents.digests.finish()
            else:
                self._contents.digests.start()
        except Exception as error:  # noqa: BLE001 the save goes on without its contents
            self._error = error

    def wait(self) -> saved_contents.Contents | None:
        """The contents; None if they could not be read, with a ``problem`` line. What no thread has digested yet is digested here."""
        try:
            if self._contents is not None:
                self._contents.digests.finish()
        except Exception as error:  # noqa: BLE001
            self._error = error
        if self._error is not None:
            record.unknown("contents", f"{type(self._error).__name__}: {self._error}"[:300])
            return None
        return self._contents


def observe(stage: str, callback: Callable[[int], None]) -> None:
    """Call ``callback(number of the save)`` before, during and after saves, and when one is committed."""
    _observers[stage].append(callback)


def report(stage: str, save: Save) -> None:
    """Call the observers of a stage, in the thread that saves."""
    for callback in _observers[stage]:
        callback(save.id)


@contextlib.contextmanager
def reported_as_a_whole() -> Iterator[None]:
    """Files that this thread saves or loads here are parts of one checkpoint, which an adapter reports."""
    _thread_state.is_part = True
    try:
        yield
    finally:
        _thread_state.is_part = False


def is_part() -> bool:
    """Is what this thread saves or loads a part of a checkpoint that is reported as a whole?"""
    return getattr(_thread_state, "is_part", False)


@record.guarded("saves")
def report_middle() -> None:
    """The save of this thread has written its data, or the first piece of it, and is not complete."""
    save = getattr(_thread_state, "save", None)
    if save is not None and not save.is_in_middle:
        save.is_in_middle = True
        report("during", save)


class FileGroups:
    """Files that a job saves together after one step, such as ``model`` and ``optimizer``: a part of them is no checkpoint."""

    def __init__(self) -> None:
        self._n = -1
        #: Directory, then names of the files that were saved there after the same step; digits count as equal.
        self._names: dict[str, set[str]] = {}
        self._expected: dict[str, set[str]] = {}

    def add(self, path: str, n: int) -> None:
        """A file was saved after ``n`` steps."""
        if n != self._n:
            self._expected.update({DIGITS.sub("#", directory): names for directory, names in self._names.items()})
            self._names.clear()
            self._n = n
        directory, name = os.path.split(path)
        self._names.setdefault(directory, set()).add(DIGITS.sub("#", name))

    def is_complete(self, path: str) -> bool:
        """Are all files saved that were saved beside this one the last time?"""
        directory = os.path.dirname(path)
        return self._expected.get(DIGITS.sub("#", directory), set()) <= self._names.get(directory, set())


class _Registry:
    """The saves of this process by path, and those that wait for their commit."""

    def __init__(self) -> None:
        self.by_path: dict[str, Save] = {}
        #: By path.
        self.waiting: dict[str, Save] = {}
        #: Calls since the saves that wait were looked at.
        self.calls = 0
        self.reports = SaveReports()
        self.ids = itertools.count(1)
        self.groups = FileGroups()
        self.unrecognised = 0
        self.stall_s = 0.0

    def remember(self, save: Save) -> None:
        self.by_path.pop(save.path, None)
        self.by_path[save.path] = save
        while len(self.by_path) > REMEMBERED:
            del self.by_path[next(iter(self.by_path))]


def _commit_buffer(save: Save, path: str, written: float) -> None:
    save.path = path
    with _lock:
        _registry.remember(save)
    commit(save, "return", path, written)


_registry = _Registry()
buffers = Buffers(hashes, _commit_buffer)


@record.guarded("saves")
def begin(api: str, path: str, value: Any, *, called: float | None = None) -> Save | None:
    """A save begins, or began at ``called``. Returns None where it is not observed."""
    if _registry.unrecognised > MAX_UNRECOGNISED:
        record.unknown("saves", f"more than {MAX_UNRECOGNISED} saves without a model: further saves are not observed")
        return None
    if threading.current_thread() is threading.main_thread():
        steps.flush()
    if not steps.completed() and steps.groups.passes >= UNSEEN:
        record.unknown("steps", f"{UNSEEN} backward passes and no step of an optimizer of torch yet", is_sure=False)
    commit_waiting(is_sure=False)
    if path:
        with _lock:  # what was not committed until now is overwritten
            _registry.waiting.pop(path, None)
    save = Save(api, path, steps.completed())
    save.called = called or save.called
    record.line("save", id=save.id, api=api, path=path, n=save.n, called=save.called, **_moment())
    report("before", save)
    save.reading = Reading(value)
    _thread_state.save = save
    return save


def write_here(save: Save | None) -> None:
    """This thread writes the data of the save, which another thread may have begun; None: it is written."""
    _thread_state.save = save


@record.guarded("saves")
def fail(save: Save | None, error: BaseException) -> None:
    """The save raised: it is neither saved nor committed."""
    _thread_state.save = None
    if save is not None:
        record.line("failed", id=save.id, error=f"{type(error).__name__}: {error}"[:500])


@record.guarded("saves")
def finish(save: Save | None, files: Sequence[str], *, durable: float | None = None) -> None:
    """The call has returned: record what was saved. ``files``: those that exist now."""
    if save is None:
        return
    stage(save)
    describe(save, files, staged=save.returned, durable=durable)


def stage(save: Save) -> None:
    """The call has returned: the script may change the tensors again."""
    _thread_state.save = None
    save.returned = time.monotonic()
    if threading.current_thread() is threading.main_thread():
        _registry.stall_s += save.returned - save.called
    if save.reading is not None:
        save.reading.wait()
    report("after", save)


def take_stall() -> dict[str, float] | None:
    """Seconds that saves have kept the main thread since the last call, as a field of a step; None without a save."""
    if not _registry.stall_s:
        return None
    stall_s, _registry.stall_s = _registry.stall_s, 0.0
    return {"checkpoint_s": stall_s}


def complete_step(n: int) -> None:
    """A step is complete: commit what waited for it, if anything did."""
    if _registry.waiting or buffers.waiting():
        commit_waiting(n)


@record.guarded("saves")
def describe(save: Save, files: Sequence[str], *, staged: float | None, durable: float | None) -> None:
    """Write the ``saved`` line."""
    read = save.reading.wait() if save.reading is not None else None
    save.reading = None
    if read is None or read.is_empty():
        _registry.unrecognised += 1
    is_open = open_passes() > 0
    fields = (
        read.describe(saved_contents.owner.current, is_accumulating=is_open)
        if read
        else {"weights": None, "contents": {}}
    )
    sizes = [[path, _size(path), None] for path in files]
    record.line("saved", id=save.id, staged=staged, durable=durable, files=sizes, **fields)


@record.guarded("saves")
def settle(save: Save | None, how: str, stream: Any = None) -> None:
    """A save has returned: commit it, unless its name is temporary, its file still open, or a file beside it missing."""
    if save is None or not save.path:
        return
    save.how, save.stream = how, stream
    save.tracker = trackers.tracker_of(save.path)
    with _lock:
        _registry.remember(save)
        _registry.groups.add(save.path, save.n)
        _registry.waiting[save.path] = save
    commit_waiting(is_sure=False)


@record.guarded("saves")
def commit_waiting(n: int = 0, *, is_end: bool = False, is_sure: bool = True) -> None:
    """Commit the saves that are complete: their file is closed, and its name final, with all files that belong to it.

    The next step completes the others: no rename followed their temporary name, no tracker names them, files were left out.
    ``is_sure``: look at each of them also if many wait.
    """
    buffers.match(steps.completed())
    _registry.calls += 1
    if not _registry.waiting or (not is_sure and _registry.calls * PER_SAVE < len(_registry.waiting) - MANY):
        return
    with _lock:
        _registry.calls = 0
        ready = [save for save in _registry.waiting.values() if is_end or _is_ready(save)]
        for save in ready:
            _registry.waiting.pop(save.path, None)
    for save in ready:
        if os.path.exists(save.path):
            _commit_as_named(save)


def _commit_as_named(save: Save) -> None:
    """Commit a save that waited, by its tracker if that names it."""
    if save.tracker is not None and trackers.refers(save.tracker, save.path):
        commit(save, "latest", save.path, max(_changed(save.tracker) or 0.0, save.returned or 0.0))
    else:
        commit(save, save.how, save.path, _changed(save.path) if save.stream is not None else save.returned)


def _is_ready(save: Save) -> bool:
    if save.stream is not None and not save.stream.closed:
        return False
    is_final = not save.is_temporary and _registry.groups.is_complete(save.path)
    is_named = save.tracker is None or trackers.refers(save.tracker, save.path)
    return (is_final and is_named) or steps.completed() > save.n


@record.guarded("saves")
def move(source: str, target: str) -> None:
    """A file or directory was renamed: saves below it have a new path, and those that waited for it are committed."""
    buffers.move(source, target)
    with _lock:
        paths = [source] if source in _registry.by_path else []
        if os.path.isdir(target):
            paths += [path for path in _registry.by_path if path.startswith(source + os.sep)]
        moved = [_registry.by_path.pop(path) for path in paths]
        for path, save in zip(paths, moved):
            _registry.waiting.pop(path, None)
            save.path = target + path[len(source) :]
            _registry.remember(save)
    for save in moved:
        save.is_temporary = is_temporary(save.path)
        if save.committed is None:
            save.returned, save.stream = time.monotonic(), None
            settle(save, "rename")
        elif not save.is_temporary:
            commit(save, "rename", save.path, save.committed)


@record.guarded("saves")
def commit(save: Save, how: str, path: str, t_committed: float | None, step: int | None = None) -> None:
    """Record that the save counts; its SHA-256 follows from a thread of low priority. A file that is renamed later keeps its first time.

    The bed learns of the first file of a checkpoint, and the record holds them all. ``step``: as the script counts.
    """
    target = identity(path)
    stamp = file_hashes.stamp(target)
    is_first = save.committed is None
    save.committed = save.committed or t_committed or time.monotonic()
    fields = {"id": save.id, "path": path, "bytes": _size(path), "how": how, "t_committed": save.committed}
    record.line("committed", **fields)
    if is_first:
        if _registry.reports.is_new((save.n, step)):
            record.notify("save.committed", path=path, n=save.n, bytes=fields["bytes"])
        report("committed", save)
    file = file_hashes.Unchanged(target, stamp)
    shared = file_hashes.of_process() if save.api == "file" else None
    delay_s = shared.delay_s(target) if shared else 0.0
    hashes.submit(lambda: _record_hash(file, shared, fields), delay_s)


def _record_hash(file: file_hashes.Unchanged, shared: file_hashes.SharedHashes | None, fields: dict[str, Any]) -> None:
    digest = shared.sha256(file) if shared else file.sha256()
    if digest is not None:
        record.line("committed", sha256=digest, **fields)
    else:
        change = "changed" if os.path.exists(fields["path"]) else "gone"
        record.line("committed", why=f"{change} before it was hashed", **fields)


def newest_committed() -> str:
    """The path of the checkpoint that this process committed last; empty if there is none."""
    with _lock:
        committed = [save for save in _registry.by_path.values() if save.committed is not None]
    return max(committed, key=lambda save: save.committed or 0.0).path if committed else ""


@record.guarded("saves")
def report_file(path: str, how: str, *, api: str = "file", step: int | None = None) -> None:
    """A file of a writer that is not observed is complete: one line for each stage, without contents.

    ``api``: ``file``, or ``script`` for a save that the script reports, after ``step`` steps as it counts.
    """
    with _lock:
        known = _registry.by_path.get(path) or _registry.by_path.get(os.path.dirname(path))
    if path and known is not None and (api == "file" or known.n == steps.completed()):
        return
    save = Save(api, path, steps.completed())
    save.returned = save.called
    claim = {} if step is None else {"step": step}
    record.line("save", id=save.id, api=api, path=path, n=save.n, called=None, **claim)
    record.line("saved", id=save.id, staged=None, durable=None, files=[[path, _size(path), None]], weights=None)
    commit(save, how, path, (_changed(path) if api == "file" else None) or save.returned, step)


def identity(path: str) -> str:
    """The file whose SHA-256 identifies a checkpoint: itself, or ``.metadata`` of a DCP directory, which has a unique save id."""
    return os.path.join(path, ".metadata") if os.path.isdir(path) else path


def is_temporary(path: str) -> bool:
    """Does the name of the file, or of its directory, say that it is renamed when it is complete?"""
    parent = os.path.basename(os.path.dirname(path))
    return bool(
        TEMPORARY.search(os.path.basename(path)) or (parent not in ("tmp", "temp") and TEMPORARY.search(parent))
    )


def absolute(path: Any) -> str:
    """The absolute path of a file name as ``open`` takes it; empty for anything else (a descriptor, a buffer)."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    return os.path.abspath(os.fsdecode(path))


def finish_process(timeout_s: float = 5.0) -> None:
    """Commit what waits and end the hashes, at the normal end of the process."""
    commit_waiting(is_end=True)
    hashes.drain(timeout_s)


def _size(path: str) -> int | None:
    """Bytes of a file, or of the files of a directory."""
    try:
        if os.path.isdir(path):
            return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
        return os.stat(path).st_size
    except OSError:
        return None


def _changed(path: str) -> float | None:
    """Return when the file was last written, on the monotonic clock."""
    with contextlib.suppress(OSError):
        return time.monotonic() - max(0.0, time.time() - os.lstat(path).st_mtime)
    return None


def open_passes() -> int:
    """Backward passes whose gradients no step of an optimizer has used, as the main thread saves; another saves what was copied."""
    is_main = threading.current_thread() is threading.main_thread()
    return steps.groups.passes - steps.groups.used_passes if is_main else 0


def _moment() -> dict[str, str | int]:
    thread = threading.current_thread()
    return {"passes": open_passes()} if thread is threading.main_thread() else {"thread": thread.name}
