"""Start the nodes of an inventory; a second `up` changes nothing."""

from __future__ import annotations

from typing import Any

import click

from ...app import beds, prepared_hosts, requests, up
from ...app.requests import UpRequest
from ..inputs import options
from ..inputs.session import Session
from ..render import bed_view


@options.command()
@options.inventory
@options.of_request(UpRequest)
@options.vault
@options.slurm_job
@options.as_json
@click.pass_obj
def command(session: Session, /, as_json: bool, **values: Any) -> int:
    """Start the nodes of INVENTORY and keep them warm; a second `up` changes nothing."""
    request = requests.build(UpRequest, values)
    if request.dry_run:
        return _dry_run(session, request, as_json=as_json)
    screen = session.terminal
    session.terminal = screen.silent() if as_json else screen
    bed = up.run(session, request)
    if as_json:
        from .status import document

        screen.json(document(session, bed.name))
    return 0


def _dry_run(session: Session, request: UpRequest, *, as_json: bool) -> int:
    planned = up.plan(session, request)
    if as_json:
        session.terminal.json(planned.document)
        return 0
    prepared_hosts.show_due(session, planned.lost)
    beds.mention_drains(session, planned.bed)
    bed_view.plan(session.terminal, planned.bed, planned.diff)
    return 0
