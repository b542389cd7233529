"""Place nodes on a drained host again."""

from __future__ import annotations

from ...app.hosts import drains
from ...app.hosts.drains import UndrainRequest
from ...app.places import short_list, short_path
from ..inputs import options
from ..inputs.session import Session


@options.shows(UndrainRequest, drains.undrain)
def command(session: Session, undrained: drains.Undrained) -> None:
    """End the drain of HOST: the next `up` starts its nodes."""
    terminal = session.terminal
    for host, drain in undrained.ended.items():
        terminal.line(f"  host {host} was drained since {drain.since} by {drain.by}: {drain.reason}")
    start = f"start its nodes: ccbed up {short_path(undrained.bed.inventory)}"
    terminal.line(f"undrained {short_list(undrained.hosts)}     {start}")
