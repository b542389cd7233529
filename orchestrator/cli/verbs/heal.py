"""Heal a bed and close a run whose orchestrator is gone."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ...app import beds, heal
from ...store import beds as store
from ..inputs import options
from ..inputs.session import Session


@options.command()
@options.of_bed()
@options.as_json
@click.pass_obj
def command(session: Session, bed: str | None, as_json: bool) -> int:
    """Heal the faults on BED, stop the gang of a run whose orchestrator is gone, and close that run."""
    spec = heal.reachable(session, beds.choose(session, bed, hint="ccbed heal {bed}"))
    if not as_json:
        return heal.heal(session, spec)
    from . import status

    run = store.open_run(Path(spec.workdir), time.time())
    screen, session.terminal = session.terminal, session.terminal.silent()
    code = heal.heal(session, spec)
    screen.json({**status.document(session, spec.name), "closed_run": run.run if run else None})
    return code
