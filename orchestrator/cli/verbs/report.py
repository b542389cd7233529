"""Write the report of a run again from its bundle."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from ...app import check
from ...app.places import run_path, short_path
from ...core.verdict.sentence import count
from ...model.errors import EXIT_UNKNOWN, CcbedError, InfrastructureError, UsageError
from ...run import judging
from ...store import bundle, index, paths
from ..inputs import options
from ..inputs.session import Session
from ..render import collective, trend_view


class UnjudgedError(CcbedError):
    """Checks of the run cannot be judged here."""

    exit_code = EXIT_UNKNOWN


@options.command()
@options.of_run(default="latest")
@options.runs_dir
@options.as_json
@click.option("--plots", is_flag=True, help="Write the plots of a collective run as PNG too: report/plots/.")
@click.option("--table", is_flag=True, help="Print the whole table of a collective run instead.")
@click.option(
    "--index",
    "runs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write one page over all runs and nights of a directory instead: DIRECTORY/index.html.",
)
@click.pass_obj
def command(
    session: Session, run: str, runs_dir: Path, as_json: bool, plots: bool, table: bool, runs: Path | None
) -> int:
    """Write the report of RUN again: index.html, summary.md, junit.xml, …

    ccbed report --index runs/
    """
    if runs is not None:
        return _index(session, runs, as_json=as_json)
    directory = index.resolve(run, runs_dir)
    check.verify(directory)
    if table:
        return _table(session, directory, as_json=as_json)
    if plots and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plots: matplotlib is not installed", hint="pip install 'ccbed[plots]'")
    result = judging.conclude(
        session.catalogue, directory, on_request=("plots",) if plots else (), on_stage=session.terminal.status
    )
    session.terminal.clear()
    if result.unsaved:
        where = run_path(directory)
        raise UnjudgedError(
            f"{where}: the report stays as it is; checks that cannot be judged here: {', '.join(result.unsaved)}",
            hint=f"ccbed --plugins {where}/{bundle.PLUGINS} report {where}",
        )
    files = sorted(file for file in (directory / bundle.REPORT).rglob("*") if file.is_file())
    if as_json:
        session.terminal.json({"directory": str(directory), "files": [str(file) for file in files]})
        return 0
    session.terminal.lines(short_path(file) for file in files)
    return 0


def _index(session: Session, runs_dir: Path, *, as_json: bool) -> int:
    """One page over many runs. Raises UsageError where there is none, InfrastructureError where the page cannot be written."""
    from ...nightly import index as run_index
    from ...nightly.reports import runs_page

    with run_index.open(runs_dir, state=session.state) as opened:
        opened.refresh()
        listed, _ = opened.runs()
        nights, trends, notes = opened.nights(), opened.trend(), opened.notes
    if not listed and not nights:
        raise UsageError(f"{short_path(runs_dir)}: no runs in this directory", hint="ccbed run dp-ring")
    file = runs_dir / runs_page.FILE
    try:
        paths.write(file, runs_page.render(runs_dir.resolve(), listed, nights, trends, notes))
    except OSError as error:
        raise InfrastructureError(f"{file}: cannot be written: {error.strerror}") from error
    if as_json:
        session.terminal.json({"file": str(file), "runs": len(listed), "nights": len(nights), "notes": list(notes)})
        return 0
    trend_view.warn(session.terminal, notes)
    session.terminal.line(
        f"page      {short_path(file)}     {count(len(listed), 'run')}, {count(len(nights), 'night')}"
    )
    return 0


def _table(session: Session, directory: Path, *, as_json: bool) -> int:
    loaded = bundle.load(directory)
    if as_json:
        session.terminal.json(collective.document(loaded))
        return 0
    lines = list(collective.lines(loaded, directory, whole=True, width=session.terminal.width))
    if not lines:
        raise UsageError(
            f"{short_path(directory)}: no collectives were measured in this run", hint="ccbed run allreduce"
        )
    session.terminal.lines(lines)
    return 0
