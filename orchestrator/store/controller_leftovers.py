"""Leftovers on the controller: cached twins, crash reports, work directories, runs that never began; optionally runs and nights."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ..core.bed.prunable import Leftover
from ..model.frozen import dataclass, replace
from ..node.hostlink import bed_files
from . import bundle, index, paths, seal

TWIN, CRASH, UNBEGUN, WORK = "twin", "crash report", "run that never began", "work directory"
RUN, NIGHT = "run", "night"
#: Why what has another name than ccbed gives is kept.
NAMED = "named by a person"
#: A night that has not ended can be resumed; without a new row for so long it is given up.
_RESUMABLE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeftover:
    leftover: Leftover
    path: Path


def of_state(state: Path, now: float) -> tuple[LocalLeftover, ...]:
    """``now``: seconds since 1970."""
    twins = (_local(TWIN, path, now) for path in sorted((state / "twins").glob("*.json")))
    crashes = (_local(CRASH, path, now) for path in sorted(state.glob("crash-*.txt")))
    return (*twins, *crashes)


def of_runs(
    runs: Path, now: float, open_runs: Collection[str], *, bundles: bool, in_use: Mapping[str, str] | None = None
) -> tuple[LocalLeftover, ...]:
    """Directories of runs that never began, copies of scripts with their outputs; with ``bundles`` all runs and nights.

    ``open_runs``: names of runs that are open. ``in_use``: name of a run or night -> why it must be kept.
    """
    result = [_local(UNBEGUN, path, now) for path in _unbegun(runs) if path.name not in open_runs]
    if not bundles:
        result += [
            _local(WORK, path, now, "the run is open on its bed" if path.parent.name in open_runs else "")
            for path in _work_dirs(runs)
        ]
        return tuple(result)
    named = {path.name: NAMED for path in runs.iterdir() if not index.is_run_name(path.name)} if runs.is_dir() else {}
    reasons = {**named, **(in_use or {}), **dict.fromkeys(open_runs, "open on its bed")}
    result += [_local(RUN, entry.directory, now, reasons.get(entry.run, "")) for entry in index.runs(runs)]
    result += [_night(path, now, reasons) for path in index.nights(runs)]
    return tuple(result)


def remove(local: LocalLeftover) -> None:
    """Raises OSError."""
    if local.path.is_dir() and not local.path.is_symlink():
        shutil.rmtree(local.path)
    else:
        local.path.unlink(missing_ok=True)


def _unbegun(runs: Path) -> Iterator[Path]:
    """Directories that ccbed created, according to their names, and that never became runs."""
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        is_run_directory = index.is_run_name(path.name) or path.name.startswith(".gather-")
        has_begun = (path / bundle.TRIAL).exists() or index.is_night(path)
        if is_run_directory and path.is_dir() and not path.is_symlink() and not has_begun:
            yield path


def _work_dirs(runs: Path) -> Iterator[Path]:
    """Only those of directories that ccbed created: ``work`` is a common name."""
    for path in sorted(runs.glob(f"*/{paths.WORK}")):
        run = path.parent
        is_own = index.is_run_name(run.name) and not run.is_symlink() and (run / bundle.TRIAL).is_file()
        if is_own and path.is_dir() and not path.is_symlink():
            yield path


def _night(path: Path, now: float, in_use: Mapping[str, str]) -> LocalLeftover:
    """A night is removed with its runs, so it is kept for each of them."""
    reasons = (in_use.get(run.name, "") for run in (path, *(path / index.NIGHT_RUNS).glob("*")))
    local = _local(NIGHT, path, now, next(filter(None, reasons), ""))
    if local.leftover.in_use or (path / seal.MANIFEST).exists() or local.leftover.age_s > _RESUMABLE_S:
        return local
    has_not_ended = f"has not ended: ccbed nightly --resume {path.name}"
    return replace(local, leftover=replace(local.leftover, in_use=has_not_ended))


def _local(kind: str, path: Path, now: float, in_use: str = "") -> LocalLeftover:
    measured = bed_files.measure([path], now)
    name = f"{path.parent.name}/{path.name}" if kind == WORK else path.name
    leftover = Leftover(
        kind=kind, name=name, location=str(path.parent), size_bytes=measured["size_bytes"],
        age_s=measured["age_s"], in_use=in_use,
    )  # fmt: skip
    return LocalLeftover(leftover=leftover, path=path)
