"""Finds what a run changed outside of its project: what it created there, and what it changed or lost that was there before.

The time of birth of a file tells both apart (statx). Only places are searched that the run's arguments name or where it saved.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model import watch
from ..model.frozen import dataclass, field
from ..model.run import Run

#: The most entries that are looked at below one path.
ENTRIES = 5_000
_CREATED_KNOWN, _FIELDS, _AT_FDCWD, _NO_FOLLOW = 0x800, 0xFFF, -100, 0x100


@dataclass(kw_only=True)
class Changes:
    """Real paths. ``created``: by the run; ``lost``: their former content is gone."""

    created: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


def changes(run: Run, began: float, params: Mapping[str, Any], own: Iterable[str]) -> Changes:
    """Find the changes since ``began``, by the clock of the files. ``own``: directories that are ccbed's, or the project."""
    result, own_dirs = Changes(), tuple(map(os.path.realpath, own))
    known = [*_saved(run), *_named(params)]
    for path in {*map(os.path.realpath, known), *map(_entry, known)}:
        if not _is_below(path, own_dirs):
            _search(path, began, own_dirs, result)
    for path in map(os.path.realpath, _loaded(run)):
        if not _is_below(path, own_dirs) and (not Path(path).exists() or _is_below(path, result.created)):
            result.lost.add(path)
    return result


def _entry(path: str) -> str:
    """The path without links on the way: of a link, not of what it leads to."""
    return str(Path(path).parent.resolve() / Path(path).name)


def _saved(run: Run) -> Iterator[str]:
    """Yield what it saved, and the files beside that, unless the directory is for everybody or the user's home."""
    for file in run.files.watch():
        for path in (*(line.path for line in file.of(watch.Save)), *(line.path for line in file.of(watch.Committed))):
            yield path
            parent = Path(os.path.realpath(path)).parent
            if parent.is_dir() and parent != Path.home() and not parent.stat().st_mode & stat.S_ISVTX:
                yield from (entry.path for entry in os.scandir(parent) if not entry.is_dir() or entry.is_symlink())


def _loaded(run: Run) -> Iterator[str]:
    """Yield what the first attempt read before its first step."""
    for file in run.files.watch():
        if any(begin.attempt == 0 for begin in file.of(watch.Begin)):
            yield from (line.path for line in file.of(watch.Load) if line.path and line.n == 0)


def _named(params: Mapping[str, Any]) -> Iterator[str]:
    """Paths in the arguments, also behind ``=``, that exist."""
    for word in params.get("args") or ():
        for text in (word, word.partition("=")[2]):
            path = Path(params.get("cwd") or ".", Path(text).expanduser()) if text and "\0" not in text else None
            if path is not None and path.exists():
                yield str(path)


def _search(path: str, began: float, own: tuple[str, ...], result: Changes) -> None:
    """Add what the run created or changed at ``path`` and below."""
    new = next((str(p) for p in (*reversed(Path(path).parents), Path(path)) if _times(str(p))[0] >= began), None)
    for entry in [new] if new else itertools.islice(_entries(path, began, own), ENTRIES):
        born, changed = _times(entry)
        if born >= began:
            result.created.add(entry)
        elif changed >= began and not Path(entry).is_dir():
            result.lost.add(entry)


def _entries(path: str, began: float, own: tuple[str, ...]) -> Iterator[str]:
    """``path`` and all below it, without what is below a new directory."""
    if _is_below(path, own) or not os.path.lexists(path):
        return
    yield path
    if Path(path).is_dir() and not Path(path).is_symlink() and _times(path)[0] < began:
        for name in sorted(os.listdir(path)) if os.access(path, os.R_OK) else ():
            yield from _entries(f"{path}/{name}", began, own)


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _times(path: str) -> tuple[float, float]:
    """(birth, last change), in seconds; birth 0 where the file system does not know it, both 0 of a missing file."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _FIELDS, buffer):
        return 0.0, 0.0
    known = struct.unpack_from("I", buffer)[0] & _CREATED_KNOWN
    born, changed = (seconds + ns / 1e9 for seconds, ns in (struct.unpack_from("qI", buffer, at) for at in (80, 96)))
    return (born if known else 0.0), changed
