"""Print what `up` would do to a bed, and why, without doing it."""

from __future__ import annotations

from pathlib import Path

import click

from ...app import beds, prepared_hosts, up
from ...app.places import short_path
from ...app.requests import UpRequest
from ...app.slurm import slurm_jobs
from ..inputs import options
from ..inputs.session import Session
from ..render import bed_view


@options.command()
@options.inventory
@options.limit
@options.as_json
@options.vault
@click.pass_obj
def command(session: Session, inventory: Path, limit: tuple[str, ...], as_json: bool) -> int:
    """Print what `up INVENTORY` would do, and why, without doing it."""
    planned = up.plan(session, UpRequest(inventory=inventory, limit=limit))
    bed, diff = planned.bed, planned.diff
    if as_json:
        session.terminal.json(planned.document)
        return 0
    slurm_jobs.show_plan(session, bed)
    prepared_hosts.show_due(session, planned.lost)
    bed_view.away(session.terminal, bed, diff)
    beds.mention_quarantine(session, bed)
    beds.mention_drains(session, bed)
    if diff.empty:
        session.terminal.line(f"bed {bed.name}: {diff.settings or 'nothing to change'}")
    else:
        bed_view.plan(session.terminal, bed, diff)
        part = f" --limit {','.join(planned.hosts)}" if limit else ""
        session.terminal.line(f"to do it: ccbed up {short_path(inventory)}{part}")
    return 0
