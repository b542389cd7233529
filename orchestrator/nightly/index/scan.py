"""Find the nights and bundles of a directory of runs, with a signature that changes when they do."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

#: As in ``nightly.suite``, ``store.bundle`` and ``store.seal``, which take as long to load as a thousand bundles to scan.
NIGHT, JOURNAL, FINDINGS, RUNS = "night.json", "night.jsonl", "findings.json", "runs"
TRIAL, HISTORY, VERDICTS, MANIFEST = "trial.json", "history.jsonl", "verdicts.json", "manifest-sha256.txt"
_OF_NIGHT = (NIGHT, JOURNAL, FINDINGS, MANIFEST)
#: A run that is not sealed still writes its history.
_OF_BUNDLE = (MANIFEST, VERDICTS, HISTORY)


#: 30,000 times: objects of paths would take longer than the kernel.
_stat_file = os.stat


class Entry(NamedTuple):
    """``directory``: relative to the directory of runs. ``night``: the directory of the night that a bundle belongs to."""

    directory: str
    is_night: bool
    signature: str
    night: str = ""


def entries(runs: Path, known: Container[str] = ()) -> Iterator[Entry]:
    """Nights, each with its bundles behind it, and the other bundles. ``known``: directories of bundles, as of the last time."""
    for name in _directories(runs):
        path = f"{runs}/{name}"
        if name in known or _exists(f"{path}/{TRIAL}"):
            yield Entry(name, False, _signature(path, _OF_BUNDLE))
        elif _exists(f"{path}/{NIGHT}"):
            yield Entry(name, True, _signature(path, _OF_NIGHT))
            yield from _bundles(runs, name, known)


def _bundles(runs: Path, night: str, known: Container[str]) -> Iterator[Entry]:
    for name in _directories(runs / night / RUNS):
        directory = f"{night}/{RUNS}/{name}"
        if directory in known or _exists(f"{runs}/{directory}/{TRIAL}"):
            yield Entry(directory, False, _signature(f"{runs}/{directory}", _OF_BUNDLE), night)


def _directories(parent: Path) -> list[str]:
    """The names of the directories, without links, such as ``latest``, and hidden ones."""
    try:
        with os.scandir(parent) as listing:
            return sorted(
                entry.name
                for entry in listing
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def _signature(path: str, names: tuple[str, ...]) -> str:
    """The directory changes when a file in it is created or replaced. A file may also change in place."""
    return ":".join((_stat(path).partition("-")[0], *(_stat(f"{path}/{name}") for name in names)))


def _stat(path: str) -> str:
    """Time, size and inode; empty for a file that does not exist."""
    try:
        status = _stat_file(path)
    except OSError:
        return ""
    return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"


def _exists(path: str) -> bool:
    return os.path.lexists(path)
