"""Print what `up` would do to a bed, and why, without doing it."""

from __future__ import annotations

from pathlib import Path

import click

from ...model import codec
from ..inputs import beds, options, prepared_hosts, slurm_jobs
from ..inputs.session import Session
from ..render import bed_view
from ..render.terminal import short_path
from .up import compare


@options.command()
@click.argument("inventory", type=click.Path(path_type=Path))
@options.as_json
@options.vault
@click.pass_obj
def command(session: Session, inventory: Path, as_json: bool) -> int:
    """Print what `up INVENTORY` would do, and why, without doing it."""
    bed = beds.wanted(session, inventory)
    due = prepared_hosts.due(session, bed)
    if not as_json:
        prepared_hosts.plan(session, bed)
        slurm_jobs.show_plan(session, bed)
    _, diff, _ = compare(session, bed)
    if as_json:
        plan = {"prepare": [codec.plain(host) for host in due], "job": slurm_jobs.plan(bed), "diff": codec.plain(diff)}
        session.terminal.json({"bed": codec.plain(bed), **plan, "empty": diff.empty and not due})
        return 0
    bed_view.away(session.terminal, bed, diff)
    beds.mention_quarantine(session, bed)
    if diff.empty:
        session.terminal.line(f"bed {bed.name}: nothing to change")
    else:
        bed_view.plan(session.terminal, bed, diff)
        session.terminal.line(f"to do it: ccbed up {short_path(inventory)}")
    return 0
