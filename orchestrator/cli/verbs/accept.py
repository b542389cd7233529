"""Probe a new cluster once, every node and every link, and write its acceptance certificate."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import click

from ...app.places import short_path
from ...model.errors import UsageError
from ..inputs import completions, options
from ..inputs.session import Session
from ..render import terminal

SUITE = "acceptance"


@options.command()
@click.argument("inventory", required=False, type=click.Path(path_type=Path), shell_complete=completions.inventories)
@options.bed
@click.option(
    "--suite",
    default=SUITE,
    show_default=True,
    metavar="SUITE|FILE.yml",
    help="Another suite of trials than the built-in one.",
)
@options.include_quarantined
@options.baselines
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, /, **values: Any) -> int:
    """Probe the bed of INVENTORY once, or a bed that is up, and write its certificate: certificate.json, certificate.md, sealed.

    \b
    ccbed accept inventories/new-cluster.yml
    ccbed accept --bed lab
    """
    from ...nightly import night_files
    from ...nightly.judging import certificate
    from .. import nightly_run

    if values["inventory"] and values["bed"]:
        raise UsageError("INVENTORY and --bed exclude each other; give one of them")
    chosen = {
        **values, "record": False, "repeat": None, "budget": None, "only": (), "resume": None, "notify": (), "on_culprit": "",
        "apply": False, "dry_run": False, "probe_spares": "30s", "resume_open": False, "fail_on": None,
    }  # fmt: skip
    before = set(night_files.nights(values["runs_dir"]))
    inner = session
    if values["as_json"]:
        inner = dataclasses.replace(session, terminal=terminal.Terminal(out=io.StringIO(), err=session.terminal.err))
    nightly_run.run(inner, values["suite"], chosen)
    [directory] = set(night_files.nights(values["runs_dir"])) - before
    document = certificate.write(directory)
    code: int = document["exit"]
    if values["as_json"]:
        session.terminal.json({**document, "directory": str(directory)})
        return code
    session.terminal.line(f"{document['decision']}     {short_path(directory / certificate.SUMMARY)}     exit {code}")
    for text in document["not_checked"]:
        session.terminal.line(f"  not checked  {text}")
    return code
