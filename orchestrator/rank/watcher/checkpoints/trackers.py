"""Trackers: a file or symbolic link such as ``latest`` that names the checkpoint which counts."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence

#: Names of trackers, of DeepSpeed, Megatron, Lightning and many scripts.
NAMES = re.compile(
    r"^(latest|last|current|newest)(_checkpoint(ed_iteration)?|_ckpt)?(\.(txt|json|pt|pth|ckpt|bin))?$", re.IGNORECASE
)
#: A tracker is a link, or a file with a name in it, of at most so many bytes.
MAX_BYTES = 4096
#: Larger directories are not searched.
MAX_ENTRIES = 1000
#: Of the time between two searches of one directory the part that a search may take: a checkpoint may have thousands of files.
SHARE = 0.02
#: Directory -> until when the tracker that was found there last is not searched for again, and this tracker.
_known: dict[str, tuple[float, str | None]] = {}


def tracker_of(path: str) -> str | None:
    """The tracker beside a checkpoint, or beside its directory; None if there is none."""
    directory, begin = os.path.dirname(path), time.monotonic()
    until, tracker = _known.get(directory, (0.0, None))
    if begin > until or tracker == path:
        tracker, end = _search(path), time.monotonic()
        _known.clear()
        _known[directory] = end + (end - begin) / SHARE, tracker
    return tracker


def _search(path: str) -> str | None:
    directory = os.path.dirname(path)
    for folder in (directory, os.path.dirname(directory)):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_ENTRIES), entries):
                if entry.path != path and NAMES.match(entry.name) and target_of(entry.path):
                    return entry.path
    return None


def target_of(tracker: str) -> str:
    """The name that a tracker holds; empty if it is a checkpoint itself, or cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if os.path.islink(tracker):
            return os.readlink(tracker).rstrip(os.sep)
        if os.path.isfile(tracker) and os.path.getsize(tracker) <= MAX_BYTES:
            with open(tracker, encoding="utf-8") as source:
                return source.read().strip()
    return ""


def is_named_so(paths: Sequence[object]) -> bool:
    """Is one of these arguments the path of a tracker?"""
    return any(isinstance(path, (str, os.PathLike)) and NAMES.match(os.path.basename(str(path))) for path in paths)


def refers(tracker: str, path: str) -> bool:
    """Does the tracker name this file, a directory above it, or its number?"""
    target = os.path.basename(target_of(tracker))
    names = [os.path.basename(path), os.path.basename(os.path.dirname(path))]
    if not target:
        return False
    if target.isdigit():
        return any(int(target) == int(number) for name in names for number in re.findall(r"\d+", name))
    return any(target in (name, os.path.splitext(name)[0]) for name in names)
