"""Resolve handles of the command line, ``runs/latest``, ``3f9c``, a path, ``lab/n2``, and list runs with their outcome."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from ..core.documents import decoder
from ..core.verdict import rungs
from ..model.errors import UsageError
from ..model.events import RunEnd
from ..model.frozen import dataclass
from ..model.trial import RUNGS
from ..model.verdict import Verdict
from . import bundle, paths

#: Bytes at the end of a history that contain its last line.
_TAIL_BYTES = 65536

#: A directory with NIGHT is a night of a suite; the bundles of its runs are in NIGHT_RUNS.
NIGHT, NIGHT_RUNS = bundle.NIGHT, "runs"

_RUN = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z-(?P<trial>.+)-(?P<token>[0-9a-f]{4,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in a directory of runs. ``state``: open (not sealed), sealed (no verdicts yet), or its outcome."""

    run: str
    trial: str
    directory: Path
    state: str


def runs(directory: Path, *, nested: bool = False) -> tuple[Entry, ...]:
    """The runs in ``directory``, oldest first, or those of the night that it is; ``nested``: and those in its nights."""
    parent = directory / NIGHT_RUNS if is_night(directory) else directory
    listed = (*_bundles(parent), *(_of_nights(parent) if nested else ()))
    return tuple(_entry(path) for path in sorted(listed, key=lambda path: path.name))


def is_night(directory: Path) -> bool:
    return (directory / NIGHT).is_file()


def nights(directory: Path) -> tuple[Path, ...]:
    """The directories of nights in ``directory``, oldest first."""
    return tuple(sorted(path for path in _entries(directory) if not path.is_symlink() and is_night(path)))


def night(handle: str, directory: Path) -> Path | None:
    """The directory of a night, from its path, its name or its last characters; None if the handle is no night's."""
    paths = [Path(handle), directory / handle, *(path for path in nights(directory) if _token(path).startswith(handle))]
    return next((path.resolve() for path in paths if handle and is_night(path)), None)


def _token(path: Path) -> str:
    return path.name.rpartition("-")[2]


def resolve(handle: str, directory: Path) -> Path:
    """The directory of a run, from its path, its name, its four last characters, or ``latest``. Raises UsageError.

    A name or its end may be that of a run in a night.
    """
    for path in (Path(handle), directory / handle):
        if (path / bundle.TRIAL).is_file():
            return path.resolve()
    if handle in (bundle.LATEST, f"runs/{bundle.LATEST}"):
        runs = (path for path in directory.glob("*-*") if is_run_name(path.name) and "-twin-" not in path.name)
        newest = max(runs, default=directory)  # of a file system without symbolic links
        if (directory / bundle.LATEST).is_symlink() or not (newest / bundle.TRIAL).is_file():
            raise _no_latest(directory)
        return newest.resolve()
    return _by_token(handle, directory)


def _no_latest(directory: Path) -> UsageError:
    """The error for ``latest`` if the last run never began: the verdict of another run would be wrong."""
    run = bundle.latest(directory)
    if not run:
        return UsageError(f"{directory}: no run yet", hint="ccbed run dp-ring")
    return UsageError(
        f"{directory / run}: the latest run has not begun, or was removed",
        hint="ccbed status, or an earlier run: ccbed list runs",
    )


def is_run_name(name: str) -> bool:
    """Return whether a directory's name is one that ccbed gives to runs."""
    return _RUN.fullmatch(name) is not None


def node(handle: str) -> tuple[str, str] | None:
    """``lab/n2`` -> (lab, n2); None for any other handle."""
    match = re.fullmatch(r"([a-z0-9][a-z0-9._-]*)/([A-Za-z][A-Za-z0-9._-]*)", handle)
    return (match[1], match[2]) if match else None


def _by_token(handle: str, directory: Path) -> Path:
    listed = (*_bundles(directory), *_of_nights(directory)) if handle else ()
    matches = [path for path in listed if path.name == handle or path.name.rpartition("-")[2].startswith(handle)]
    if len(matches) == 1:
        return matches[0].resolve()
    if matches:
        names = ", ".join(sorted(path.name for path in matches))
        raise UsageError(f"{handle} matches several runs: {names}", hint="give more of the name")
    if Path(handle).is_dir():
        raise UsageError(f"{handle}: not a run: it has no {bundle.TRIAL}", hint="ccbed list runs")
    close = difflib.get_close_matches(handle, [bundle.LATEST, *(path.name for path in listed)], n=1, cutoff=0.6)
    near = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"no run {handle} in {directory}{near}", hint="ccbed list runs, or --runs-dir DIRECTORY")


def _bundles(directory: Path) -> tuple[Path, ...]:
    return tuple(path for path in _entries(directory) if not path.is_symlink() and (path / bundle.TRIAL).is_file())


def _of_nights(directory: Path) -> tuple[Path, ...]:
    return tuple(path for night in nights(directory) for path in _bundles(night / NIGHT_RUNS))


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _entry(path: Path) -> Entry:
    match = _RUN.fullmatch(path.name)
    return Entry(run=path.name, trial=match["trial"] if match else path.name, directory=path, state=read_state(path))


def read_state(path: Path) -> str:
    """The overall outcome of a judged run; open or sealed for a run without verdicts. Without its end no run passes."""
    verdicts = _verdicts(path / bundle.VERDICTS)
    if verdicts is None:
        return "sealed" if bundle.is_sealed(path) else "open"
    end = _end(path / bundle.HISTORY)
    return rungs.overall(verdicts, end.outcome or "", end.kind or "", _required(path / bundle.TRIAL))


def _required(file: Path) -> str:
    """The rung that the trial requires; the highest where the trial names none, or cannot be read."""
    try:
        document = decoder.parse(paths.read(file))
    except (OSError, decoder.DocumentError):
        document = {}
    rung = document.get("require") if isinstance(document, dict) else None
    return rung if rung in RUNGS else RUNGS[-1]


def _verdicts(file: Path) -> tuple[Verdict, ...] | None:
    """The saved verdicts; None if there is no file; empty if they cannot be read."""
    try:
        return decoder.convert(tuple[Verdict, ...], decoder.parse(paths.read(file)))
    except FileNotFoundError:
        return None
    except (OSError, decoder.DocumentError):
        return ()


def _end(history: Path) -> RunEnd:
    """The payload of ``run.end``, the last line of a history; an empty payload if that line is another event."""
    try:
        if not history.is_file():
            return RunEnd()
        with history.open("rb") as lines:
            lines.seek(max(0, history.stat().st_size - _TAIL_BYTES))
            event = decoder.event(lines.read(_TAIL_BYTES).splitlines()[-1])
        return event.data if event.kind is RunEnd else RunEnd()
    except (OSError, decoder.DocumentError, IndexError):
        return RunEnd()
