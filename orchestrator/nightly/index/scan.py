"""Find the nights and bundles of a directory of runs, with a signature that changes when they do."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...store import bundle, seal
from ..suite import FINDINGS, JOURNAL, NIGHT, RUNS

_OF_NIGHT = (NIGHT, JOURNAL, FINDINGS, seal.MANIFEST)
_OF_BUNDLE = (seal.MANIFEST, bundle.VERDICTS)


@dataclass(frozen=True, slots=True)
class Entry:
    """``directory``: relative to the directory of runs. ``night``: the directory of the night that a bundle belongs to."""

    directory: str
    is_night: bool
    signature: str
    night: str = ""


def entries(runs: Path, known: Container[str] = ()) -> Iterator[Entry]:
    """Nights, each with its bundles behind it, and the other bundles. ``known``: directories of bundles, as of the last time."""
    for name in _directories(runs):
        path = f"{runs}/{name}"
        if name in known or _exists(f"{path}/{bundle.TRIAL}"):
            yield Entry(name, False, _bundle_signature(path))
        elif _exists(f"{path}/{NIGHT}"):
            yield Entry(name, True, _signature(path, _OF_NIGHT))
            yield from _bundles(runs, name, known)


def _bundles(runs: Path, night: str, known: Container[str]) -> Iterator[Entry]:
    for name in _directories(runs / night / RUNS):
        directory = f"{night}/{RUNS}/{name}"
        if directory in known or _exists(f"{runs}/{directory}/{bundle.TRIAL}"):
            yield Entry(directory, False, _bundle_signature(f"{runs}/{directory}"), night)


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


def _bundle_signature(path: str) -> str:
    """A run that is not sealed still writes its history."""
    signature = _signature(path, _OF_BUNDLE)
    return signature if "::" not in signature else _signature(path, (*_OF_BUNDLE, bundle.HISTORY))


def _signature(path: str, names: tuple[str, ...]) -> str:
    """The directory changes when a file in it is created or replaced. A file may also change in place."""
    return ":".join([str(_stat(path)[0]), *("-".join(map(str, _stat(f"{path}/{name}"))) for name in names), ""])


def _stat(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)  # noqa: PTH116 - 30,000 times
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _exists(path: str) -> bool:
    return os.path.lexists(path)
