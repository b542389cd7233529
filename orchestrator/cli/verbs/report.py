"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

import click

from ...model.errors import EXIT_UNKNOWN, CcbedError, UsageError
from ...run import judging
from ...store import bundle, index
from ..inputs import beds, options
from ..inputs.session import Session
from ..render import collective
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
        where = beds.run_shown(directory)
        raise UnjudgedError(
            f"{where}: the report is left as it is: not judged now: {', '.join(result.unsaved)}",
            hint=f"ccbed --plugins {where}/{bundle.PLUGINS} report {where}",
        )
    files = sorted(file for file in (directory / bundle.REPORT).rglob("*") if file.is_file())
    if as_json:
        session.terminal.json({"directory": str(directory), "files": [str(file) for file in files]})
        return 0
    session.terminal.lines(beds.shown(file) for file in files)
    return 0


def _table(session: Session, directory: Path, *, as_json: bool) -> int:
    one = bundle.load(directory)
    if as_json:
        session.terminal.json(collective.document(one))
        return 0
    told = list(collective.lines(one, directory, whole=True))
    if not told:
        raise UsageError(
            f"{beds.shown(directory)}: no collectives were measured in this run", hint="ccbed run allreduce"
        )
    session.terminal.lines(told)
    return 0
