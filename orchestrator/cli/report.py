"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

import click

from ..core import judge
from ..store import bundle, index
from . import beds, check, options, reporting
from .session import Session


@options.command()
@click.argument("run")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Write the report of RUN again: index.html, summary.md, junit.xml, …"""
    directory = index.resolve(run, runs_dir)
    check.verify(directory)
    found = bundle.load(directory)
    verdicts = found.verdicts or judge.judge(found, session.catalogue, judge.specs(found.trial, session.catalogue))
    files = [directory / bundle.REPORT / name for name in reporting.write(session, found, verdicts)]
    if as_json:
        session.terminal.json({"directory": str(directory), "files": [str(file) for file in files]})
        return 0
    for file in files:
        session.terminal.line(beds.shown(file))
    return 0
