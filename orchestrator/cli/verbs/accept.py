"""Probe a new cluster once, every node and every link, and write its acceptance certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...app import requests
from ...app.nightly.request import NightRequest
from ...app.places import short_path
from ...app.requests import BedRef
from ...model.errors import UsageError
from ..inputs import completions, options
from ..inputs.session import Session

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
def command(session: Session, /, inventory: Path | None, bed: str | None, as_json: bool, **values: Any) -> int:
    """Probe the bed of INVENTORY once, or a bed that is up, and write its certificate: certificate.json, certificate.md, sealed.

    \b
    ccbed accept inventories/new-cluster.yml
    ccbed accept --bed lab
    """
    from ...app.nightly import nights
    from ...nightly.judging import certificate

    if inventory and bed:
        raise UsageError("INVENTORY and --bed exclude each other; give one of them")
    chosen = {**values, "bed": BedRef(bed=bed, inventory=inventory)}
    directory = nights.begin(session, requests.build(NightRequest, chosen)).directory
    document = certificate.write(directory)
    code: int = document["exit"]
    if as_json:
        session.terminal.json({**document, "directory": str(directory)})
        return code
    session.terminal.line(f"{document['decision']}     {short_path(directory / certificate.SUMMARY)}     exit {code}")
    for text in document["not_checked"]:
        session.terminal.line(f"  not checked  {text}")
    return code
