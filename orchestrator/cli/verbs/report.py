"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

import click

from ...model.errors import EXIT_UNKNOWN, CcbedError, UsageError
from ...run import judging
from ...store import bundle, index
from ..inputs import options
from ..inputs.session import Session
from ..render import collective
from ..render.terminal import run_path, short_path
from . import check


class UnjudgedError(CcbedError):
    """Checks of the run cannot be judged here."""

    exit_code = EXIT_UNKNOWN


@options.command()
@click.argument("run", default="latest")
@options.runs_dir
@options.as_json
@click.option("--table", is_flag=True, help="Print the whole table of a collective run instead.")
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool, table: bool) -> int:
    """Write the report of RUN again: index.html, summary.md, junit.xml, …"""
    directory = index.resolve(run, runs_dir)
    check.verify(directory)
    if table:
        return _table(session, directory, as_json=as_json)
    result = judging.conclude(session.catalogue, directory)
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


def _table(session: Session, directory: Path, *, as_json: bool) -> int:
    loaded = bundle.load(directory)
    if as_json:
        session.terminal.json(collective.document(loaded))
        return 0
    lines = list(collective.lines(loaded, directory, whole=True))
    if not lines:
        raise UsageError(
            f"{short_path(directory)}: no collectives were measured in this run", hint="ccbed run allreduce"
        )
    session.terminal.lines(lines)
    return 0
