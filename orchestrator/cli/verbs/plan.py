"""Print what `up` would do to a bed, and why, without doing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...model import codec
from ...model.bed import BedSpec
from ..inputs import beds, options, prepared_hosts, slurm_jobs
from ..inputs.session import Session
from ..render import bed_view
from ..render.terminal import short_path
from .up import compare


@options.command()
@options.inventory
@options.limit
@options.as_json
@options.vault
@click.pass_obj
def command(session: Session, inventory: Path, limit: tuple[str, ...], as_json: bool) -> int:
    """Print what `up INVENTORY` would do, and why, without doing it."""
    bed = beds.wanted(session, inventory)
    hosts = beds.acting_hosts(session, bed, limit)
    if as_json:
        session.terminal.json(document(session, bed, hosts))
        return 0
    prepared_hosts.plan(session, bed, hosts=hosts)
    slurm_jobs.show_plan(session, bed)
    status, diff, _ = compare(session, bed, hosts)
    prepared_hosts.show_due(session, prepared_hosts.lost(session, bed, status))
    bed_view.away(session.terminal, bed, diff)
    beds.mention_quarantine(session, bed)
    beds.mention_drains(session, bed)
    if diff.empty:
        session.terminal.line(f"bed {bed.name}: {diff.settings or 'nothing to change'}")
    else:
        bed_view.plan(session.terminal, bed, diff)
        part = f" --limit {','.join(hosts)}" if limit else ""
        session.terminal.line(f"to do it: ccbed up {short_path(inventory)}{part}")
    return 0


def document(session: Session, bed: BedSpec, hosts: Sequence[str], *, prepare: bool | None = None) -> dict[str, Any]:
    """What `up` would do on ``hosts``, as a JSON value. ``prepare``: as for `up`."""
    due = prepared_hosts.due(session, bed, wanted=prepare, hosts=hosts)
    status, diff, _ = compare(session, bed, hosts)
    lost = prepared_hosts.lost(session, bed, status) if prepare is None else ()
    due = (*due, *(host for host in lost if host.host not in {other.host for other in due}))
    return {
        "bed": codec.plain(bed),
        "hosts": list(hosts),
        "prepare": [codec.plain(host) for host in due],
        "job": slurm_jobs.plan(bed),
        "diff": codec.plain(diff),
        "empty": diff.empty and not due,
    }
