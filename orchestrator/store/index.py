"""Handles of the command line -> what they mean: ``runs/latest``, ``3f9c``, a path, ``lab/n2``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..core import documents
from ..model.errors import UsageError
from ..model.verdict import Verdict
from . import bundle, paths

_RUN = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z-(?P<trial>.+)-(?P<token>[0-9a-f]{4,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in a directory of runs. ``state``: open (not sealed), sealed (no verdicts yet), or the worst of its verdicts."""

    run: str
    trial: str
    directory: Path
    state: str


def runs(directory: Path) -> tuple[Entry, ...]:
    """The runs below ``directory``, oldest first."""
    found = sorted(
        entry for entry in _entries(directory) if not entry.is_symlink() and (entry / bundle.TRIAL).is_file()
    )
    return tuple(_entry(path) for path in found)


def resolve(handle: str, directory: Path) -> Path:
    """The directory of a run, from its path, its name, its four last characters, or ``latest``. Raises UsageError."""
    for path in (Path(handle), directory / handle):
        if (path / bundle.TRIAL).is_file():
            return path.resolve()
    if handle in (bundle.LATEST, f"runs/{bundle.LATEST}"):
        raise _no_latest(directory)
    return _by_token(handle, directory)


def _no_latest(directory: Path) -> UsageError:
    """Another run's verdict is no answer where the one that was asked for last never began."""
    run = bundle.latest(directory)
    if not run:
        return UsageError(f"{directory}: no run yet", hint="ccbed run dp-ring")
    return UsageError(
        f"{directory / run}: the run that was asked for last has not begun, or was removed",
        hint="ccbed status, or an earlier run: ccbed list runs",
    )


def is_run_name(name: str) -> bool:
    """Whether a directory's name is one that ccbed gives to runs."""
    return _RUN.fullmatch(name) is not None


def node(handle: str) -> tuple[str, str] | None:
    """``lab/n2`` -> (lab, n2); None for what is no such handle."""
    match = re.fullmatch(r"([a-z0-9][a-z0-9._-]*)/([A-Za-z][A-Za-z0-9._-]*)", handle)
    return (match[1], match[2]) if match else None


def _by_token(handle: str, directory: Path) -> Path:
    match = [entry for entry in runs(directory) if handle and entry.run.rpartition("-")[2].startswith(handle)]
    if len(match) == 1:
        return match[0].directory.resolve()
    if match:
        listed = ", ".join(entry.run for entry in match)
        raise UsageError(f"{handle} means several runs: {listed}", hint="give more of the name")
    if Path(handle).is_dir():
        raise UsageError(f"{handle}: not a run: it has no {bundle.TRIAL}", hint="ccbed list runs")
    raise UsageError(f"no run {handle} in {directory}", hint="ccbed list runs, or --runs-dir DIRECTORY")


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _entry(path: Path) -> Entry:
    match = _RUN.fullmatch(path.name)
    state = _judged(path / bundle.VERDICTS) or ("sealed" if bundle.is_sealed(path) else "open")
    return Entry(run=path.name, trial=match["trial"] if match else path.name, directory=path, state=state)


def _judged(verdicts: Path) -> str:
    """``fail``, ``unknown`` or ``pass``, whichever comes first; empty where nothing was judged."""
    try:
        listed: tuple[Verdict, ...] = documents.convert(tuple[Verdict, ...], documents.parse(paths.read(verdicts)))
    except FileNotFoundError:
        return ""
    except (OSError, documents.DocumentError):
        return "unknown"
    found = {verdict.outcome for verdict in listed} - {"skipped"}
    return "fail" if "fail" in found else "pass" if found == {"pass"} else "unknown"
