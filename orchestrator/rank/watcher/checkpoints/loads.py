"""The life of a load: what was read, from which file, with which digests; or the error that it raised.

A script usually loads before the watcher knows which parameters the optimizer owns. So the line of a load is written at
once, with the digest of what has the most elements, and again with that of the model's own parameters once they are known.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import time
from collections.abc import Callable
from typing import Any

from .. import record, steps
from . import file_hashes, saved_contents, saves

#: Bytes that are hashed within the call: 15 ms. Larger files are hashed in the thread of low priority.
HASHED_AT_ONCE = 1 << 24
#: Loads that are observed after the first step: later ones read samples, not checkpoints.
MAX_AFTER_STEPS = 200
#: Entries of the directory of a checkpoint that are recorded.
MAX_ENTRIES = 200


class Load:
    """One load that was called."""

    def __init__(self, api: str, path: str) -> None:
        self.id = next(_progress.ids)
        self.api, self.path = api, path
        self.called = time.monotonic()
        self.stamp = file_hashes.stamp(saves.identity(path)) if path else None
        #: SHA-256 of a buffer that is loaded.
        self.sha256: str | None = None
        self.n = steps.completed()
        self.folder = _entries(os.path.dirname(os.path.abspath(path))) if path else None


class _Progress:
    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.after_steps = 0
        #: Loads whose weights are not known yet, and what they contain.
        self.unmatched: list[tuple[dict[str, Any], saved_contents.Contents]] = []
        self.observers: dict[str, list[Callable[[int], None]]] = {"before": [], "after": []}


_progress = _Progress()


def observe(stage: str, callback: Callable[[int], None]) -> None:
    """Call ``callback(number of the load)`` ``before`` or ``after`` loads."""
    _progress.observers[stage].append(callback)


@record.guarded("loads")
def begin(api: str, path: str, source: Any = None) -> Load | None:
    """A load begins. Returns None where it is not observed."""
    if steps.completed():
        _progress.after_steps += 1
        if _progress.after_steps > MAX_AFTER_STEPS:
            record.unknown(
                "loads", f"more than {MAX_AFTER_STEPS} loads after the first step: further loads are not observed"
            )
            return None
    load = Load(api, path)
    if isinstance(source, io.BytesIO):
        load.sha256 = hashlib.sha256(source.getvalue()).hexdigest()
    for callback in _progress.observers["before"]:
        callback(load.id)
    return load


@record.guarded("loads")
def fail(load: Load | None, error: BaseException) -> None:
    """The load raised."""
    if load is not None:
        fields = _fields(load, time.monotonic())
        parts = {"parts": _entries(load.path)} if load.path and os.path.isdir(load.path) else {}
        _write(load, {**fields, **parts, "error": f"{type(error).__name__}: {error}"[:500]})


@record.guarded("loads")
def finish(load: Load | None, value: Any) -> None:
    """The load has returned ``value``: record it before the script changes it."""
    if load is None:
        return
    fields = _fields(load, time.monotonic())
    read = saved_contents.read(value)
    owner = saved_contents.owner.current
    fields.update(read.describe(owner))
    _write(load, fields)
    if owner is None and not read.is_empty():
        _progress.unmatched.append((fields, read))
    for callback in _progress.observers["after"]:
        callback(load.id)


@record.guarded("loads")
def match(owner: saved_contents.Owner) -> None:
    """The owner is known: write the lines of earlier loads again, with the digests of its parameters."""
    for fields, read in _progress.unmatched:
        fields.update(read.describe(owner))
        record.line("load", **fields)
    _progress.unmatched.clear()


def _entries(directory: str) -> dict[str, int] | None:
    """Names and bytes of the files in a directory, -1 of directories; None where there are too many."""
    try:
        with os.scandir(directory) as entries:
            listed = list(itertools.islice(entries, MAX_ENTRIES + 1))
            sizes = {entry.name: entry.stat().st_size if entry.is_file() else -1 for entry in listed}
    except OSError:
        return None
    return sizes if len(listed) <= MAX_ENTRIES else None


def _fields(load: Load, end: float) -> dict[str, Any]:
    size = load.stamp[1] if load.stamp else None
    fields = {
        "id": load.id,
        "api": load.api,
        "path": load.path,
        "n": load.n,
        "called": load.called,
        "end": end,
        "bytes": size,
        "fs": file_system_of(load.path) if load.path else "",
        "folder": load.folder,
    }
    return {**fields, "sha256": load.sha256}


def _write(load: Load, fields: dict[str, Any]) -> None:
    """Write the line. A large file is hashed later, and the line, as it is then, is written again."""
    if load.stamp is None or load.sha256 is not None:
        record.line("load", **fields)
        return
    file = file_hashes.Unchanged(saves.identity(load.path), load.stamp)
    if load.stamp[1] <= HASHED_AT_ONCE:
        fields["sha256"] = file.sha256()
        record.line("load", **fields)
        return
    record.line("load", **fields)
    saves.hashes.submit(lambda: _write_later(fields, file))


def _write_later(fields: dict[str, Any], file: file_hashes.Unchanged) -> None:
    fields["sha256"] = file.sha256()
    if fields["sha256"] is not None:
        record.line("load", **fields)


_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: str = _MOUNTS) -> str:
    """The type, such as ``ext4``, ``tmpfs`` or ``nfs4``; empty if it is not known."""
    real = os.path.realpath(path)
    best = ("", "")
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                fields = before.split()
                point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]) if len(fields) > 4 else ""
                is_above = point == "/" or real == point or real.startswith(point + "/")
                if point and is_above and len(point) >= len(best[0]):  # of mounts at one point the last one is on top
                    best = (point, after.split()[0] if after.split() else "")
    except OSError:
        return ""
    return best[1]
