"""Estimate a training: bytes of collectives, steps, memory, time."""

from __future__ import annotations

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ..app import estimate
from ..app.size_request import SizeRequest
from ..sizing import size_view


@options.verb(SizeRequest)
def command(session: Session, request: SizeRequest) -> int:
    """Estimate a training: bytes of every collective, steps, memory, time on a link. Nothing is started."""
    sized = estimate.run(session, request)
    size_view.show_sized(session.terminal, sized, request.model.trace, as_json=session.is_json)
    return 0
