"""Start the nodes of an inventory; a second `up` changes nothing."""

from __future__ import annotations

from ...app import beds, prepared_hosts, up
from ...app.requests import UpRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import bed_view


@options.verb(UpRequest, options.vault, options.slurm_job)
def command(session: Session, request: UpRequest) -> int:
    """Start the nodes of INVENTORY and keep them ready; a second `up` changes nothing."""
    if request.dry_run:
        _show_plan(session, up.plan(session, request))
        return 0
    screen = session.silence_for_json()
    bed = up.run(session, request)
    if session.is_json:
        from ...app import status

        screen.json(status.of(session, bed.name).document)
    return 0


def _show_plan(session: Session, planned: up.Plan) -> None:
    if session.is_json:
        session.terminal.json(planned.document)
        return
    prepared_hosts.show_due(session, planned.lost)
    beds.mention_drains(session, planned.bed)
    bed_view.plan(session.terminal, planned.bed, planned.diff)
