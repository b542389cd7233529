"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

import click

from .. import run as life
from ..model.errors import UsageError
from ..store import bundle, index
from . import beds, check, collective, options
from .session import Session


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
    life.conclude(session.catalogue, directory)
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
