"""Run a suite of trials as a night: compare it with earlier nights, report, and say what got slower."""

from __future__ import annotations

from typing import Any

import click

from ...app import requests
from ...app.nightly.request import NightRequest
from ..inputs import completions, options
from ..inputs.session import Session


@options.command()
@click.argument("suite", required=False, metavar="SUITE|FILE.yml", shell_complete=completions.suites)
@options.of_request(NightRequest)
@options.slurm_job
@options.as_json
@click.pass_obj
def command(session: Session, /, as_json: bool, **values: Any) -> int:
    """Run SUITE, a built-in one (quick, standard) or a file, on a bed; then compare, report, and exit by the verdict.

    \b
    ccbed nightly quick
    ccbed nightly suites/lab.yml --bed lab --record
    """
    from ...app.nightly import nights

    request = requests.build(NightRequest, values)
    if request.dry_run and not request.resume:
        from ..render import night_lines

        night_lines.dry_run(session.terminal, nights.plan(session, request), as_json=as_json)
        return 0
    finished = nights.run(session, request)
    if as_json:
        session.terminal.json(finished.document)
    return finished.judgement.exit
