"""Print what `up` would do to a bed, and why, without doing it."""

from __future__ import annotations

from ...app import bed_job, beds, prepared_hosts, up
from ...app.places import short_path
from ...app.requests import PlanRequest, UpRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import bed_view


@options.verb(PlanRequest, options.vault)
def command(session: Session, request: PlanRequest) -> int:
    """Print what `up INVENTORY` would do, and why, without doing it."""
    planned = up.plan(session, UpRequest(inventory=request.inventory, limit=request.limit))
    bed, diff = planned.bed, planned.diff
    if session.is_json:
        session.terminal.json(planned.document)
        return 0
    bed_job.of(bed).show_plan(session, bed)
    prepared_hosts.show_due(session, planned.lost)
    session.terminal.lines(f"address on {text}" for text in planned.addresses)
    bed_view.away(session.terminal, bed, diff)
    beds.mention_quarantine(session, bed)
    beds.mention_drains(session, bed)
    if diff.empty:
        session.terminal.line(f"bed {bed.name}: {diff.settings or 'nothing to change'}")
    else:
        bed_view.plan(session.terminal, bed, diff)
        part = f" --limit {','.join(planned.hosts)}" if request.limit else ""
        session.terminal.line(f"to do it: ccbed up {short_path(request.inventory)}{part}")
    return 0
