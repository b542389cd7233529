"""Write the report of a run again from its bundle, or one page over many runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ...model.errors import EXIT_UNKNOWN, CcbedError, UsageError
from ...model.frozen import dataclass
from ...model.run import Run
from ...run import judging
from ...store import bundle, index
from .. import check
from ..places import run_path
from ..requests import named_run, option, runs_directory
from ..session import Session


class UnjudgedError(CcbedError):
    """Checks of the run cannot be judged here."""

    exit_code = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The request of `ccbed report`. ``runs``: the directory of the runs of one page."""

    run: str = named_run("latest")
    runs_dir: Path = runs_directory()
    plots: bool = option(False, "Write the plots of a collective run as PNG too: report/plots/.")
    table: bool = option(False, "Print the whole table of a collective run instead.")
    runs: Path | None = option(
        None,
        "Write one page over all runs and nights of a directory instead: DIRECTORY/index.html.",
        metavar="DIRECTORY",
        flags=("--index",),
        exists=True,
        is_folder=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files of a report."""

    directory: Path
    files: tuple[Path, ...]


def verified(request: ReportRequest) -> Path:
    """Return the directory of the run, whose evidence matches its seal. Raises UsageError, TornBundleError."""
    directory = index.resolve(request.run, request.runs_dir)
    check.verify(directory)
    return directory


def measured(request: ReportRequest) -> Run:
    """Return the run whose table is to be shown. Raises as ``verified`` does."""
    return bundle.load(verified(request))


def write(session: Session, request: ReportRequest) -> Written:
    """Write the report of a run again. Raises UsageError, UnjudgedError, TornBundleError."""
    directory = verified(request)
    if request.plots and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plots: matplotlib is not installed", hint="pip install 'ccbed[plots]'")
    extra = ("plots",) if request.plots else ()
    result = judging.conclude(session.catalogue, directory, on_request=extra, on_stage=session.terminal.status)
    if result.unsaved:
        where = run_path(directory)
        raise UnjudgedError(
            f"{where}: the report stays as it is; checks that cannot be judged here: {', '.join(result.unsaved)}",
            hint=f"ccbed --plugins {where}/{bundle.PLUGINS} report {where}",
        )
    files = sorted(file for file in (directory / bundle.REPORT).rglob("*") if file.is_file())
    return Written(directory=directory, files=tuple(files))
