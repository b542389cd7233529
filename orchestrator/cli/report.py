"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

import click

from .. import run as life
from ..store import bundle, index
from . import beds, check, options
from .session import Session


@options.command()
@click.argument("run", default="latest")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Write the report of RUN again: index.html, summary.md, junit.xml, …"""
    directory = index.resolve(run, runs_dir)
    check.verify(directory)
    life.conclude(session.catalogue, directory)
    files = sorted(file for file in (directory / bundle.REPORT).rglob("*") if file.is_file())
    if as_json:
        session.terminal.json({"directory": str(directory), "files": [str(file) for file in files]})
        return 0
    session.terminal.lines(beds.shown(file) for file in files)
    return 0
