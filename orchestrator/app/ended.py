"""Describes how a run ended: its verdicts, what this invocation lacks to judge it, and the commands that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .. import plugins, views
from ..core.verdict import judge
from ..model.frozen import replace
from ..model.launch import Result
from ..model.plugin import Catalogue
from ..model.run import Run
from ..store import bundle
from .places import run_path

#: The file name of a report's traceback ends with this.
_FAILED = "-failed.txt"


def saved(directory: Path) -> Result:
    """Read the result of a run from its saved verdicts."""
    run = bundle.load(directory)
    outcome, _, kind = views.ending(run.history)
    code = judge.exit_code(run.verdicts, outcome, kind, run.trial.require)
    return Result(run=directory.name, directory=str(directory), code=code, verdicts=run.verdicts)


def judged(result: Result) -> Run:
    """Return the run with the verdicts of its result."""
    run = result.judged or bundle.load(Path(result.directory), judged=False)
    return replace(run, verdicts=result.verdicts)


def unloaded(catalogue: Catalogue, directory: Path) -> Iterator[str]:
    """Yield a note on the plugins of the run that this invocation did not load; their checks and reports are missing."""
    if missing := plugins.unloaded(directory / bundle.PLUGINS, catalogue):
        where = f"--plugins {run_path(directory)}/{bundle.PLUGINS}"
        yield f"plugins of this run that are not loaded: {', '.join(missing)} ({where})"


def failed_reports(directory: Path) -> dict[str, str]:
    """Report that failed -> the file with its traceback; the verdicts do not depend on reports."""
    report, where = directory / bundle.REPORT, f"{run_path(directory)}/{bundle.REPORT}"
    return {path.name.removesuffix(_FAILED): f"{where}/{path.name}" for path in sorted(report.glob(f"*{_FAILED}"))}


def page(directory: Path) -> str:
    """The short path of the run's page; empty if it has none."""
    file = directory / bundle.REPORT / "index.html"
    return f"{run_path(directory)}/{bundle.REPORT}/index.html" if file.exists() else ""


def next_commands(result: Result, releases: Callable[[str], bool]) -> dict[str, str]:
    """Purpose -> command. ``releases`` tells whether a bed goes down with this command."""
    directory = Path(result.directory)
    where = run_path(directory)
    ccbed = f"ccbed --plugins {where}/{bundle.PLUGINS}" if (directory / bundle.PLUGINS).is_dir() else "ccbed"
    if result.code != 130 or bundle.is_sealed(directory):
        return {"again": f"{ccbed} run {where}/{bundle.TRIAL}", "recheck": f"{ccbed} check {where}"}
    if releases(bundle.load_plan(directory).bed):
        return {"released": f"{ccbed} run {where}/{bundle.TRIAL} -i INVENTORY"}
    return {"next": f"{ccbed} resume {where}"}
