"""Leftovers on the controller: cached twins, crash reports, work directories, runs that never began; optionally bundles."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.bed.prune import Leftover
from ..node.hostlink import prunable_files
from . import bundle, index, paths

TWIN, CRASH, UNBEGUN, RUN, WORK = "twin", "crash report", "run that never began", "run", "work directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeftover:
    """A leftover with its path."""

    leftover: Leftover
    path: Path


def of_state(state: Path, now: float) -> tuple[LocalLeftover, ...]:
    """``now``: seconds since 1970."""
    twins = (_local(TWIN, path, now) for path in sorted((state / "twins").glob("*.json")))
    crashes = (_local(CRASH, path, now) for path in sorted(state.glob("crash-*.txt")))
    return (*twins, *crashes)


def of_runs(runs: Path, now: float, open_runs: Collection[str], *, bundles: bool) -> tuple[LocalLeftover, ...]:
    """Directories of runs that never began, copies of scripts with their outputs; with ``bundles`` all runs.

    ``open_runs``: names of runs that are open.
    """
    result = [_local(UNBEGUN, path, now) for path in _unbegun(runs) if path.name not in open_runs]
    if not bundles:
        result += [
            _local(WORK, path, now, "the run is open on its bed" if path.parent.name in open_runs else "")
            for path in _work_dirs(runs)
        ]
    if bundles:
        result += [
            _local(RUN, entry.directory, now, "open on its bed" if entry.run in open_runs else "")
            for entry in index.runs(runs)
        ]
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
        if is_run_directory and path.is_dir() and not path.is_symlink() and not (path / bundle.TRIAL).exists():
            yield path


def _work_dirs(runs: Path) -> Iterator[Path]:
    """Only those of directories that ccbed created: ``work`` is a common name."""
    for path in sorted(runs.glob(f"*/{paths.WORK}")):
        run = path.parent
        is_own = index.is_run_name(run.name) and not run.is_symlink() and (run / bundle.TRIAL).is_file()
        if is_own and path.is_dir() and not path.is_symlink():
            yield path


def _local(kind: str, path: Path, now: float, in_use: str = "") -> LocalLeftover:
    measured = prunable_files.measure([path], now)
    name = f"{path.parent.name}/{path.name}" if kind == WORK else path.name
    leftover = Leftover(
        kind=kind, name=name, location=str(path.parent), size_bytes=measured["size_bytes"],
        age_s=measured["age_s"], in_use=in_use,
    )  # fmt: skip
    return LocalLeftover(leftover=leftover, path=path)
