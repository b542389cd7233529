"""Place nodes on a drained host again."""

from __future__ import annotations

from ...app.hosts import drains
from ...app.hosts.drains import UndrainRequest
from ...app.places import short_list, short_path
from ..inputs import options
from ..inputs.session import Session


@options.verb(UndrainRequest)
def command(session: Session, request: UndrainRequest) -> int:
    """End the drain of HOST: the next `up` starts its nodes."""
    terminal, undrained = session.terminal, drains.undrain(session, request)
    if session.is_json:
        terminal.json({"bed": undrained.bed.name, "undrained": undrained.hosts})
        return 0
    for host, drain in undrained.ended.items():
        terminal.line(f"  host {host} was drained since {drain.since} by {drain.by}: {drain.reason}")
    start = f"start its nodes: ccbed up {short_path(undrained.bed.inventory)}"
    terminal.line(f"undrained {short_list(undrained.hosts)}     {start}")
    return 0
