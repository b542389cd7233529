"""Undo the faults left on a bed, and close a run whose orchestrator is gone."""

from __future__ import annotations

from ...app import heal, status
from ...app.requests import OneBedRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.verb(OneBedRequest)
def command(session: Session, request: OneBedRequest) -> int:
    """Undo the faults on BED, stop the worker group of a run whose orchestrator is gone, and close that run."""
    screen = session.silence_for_json()
    bed, closed_run = heal.run(session, request)
    if session.is_json:
        screen.json({**status.of(session, bed.name).document, "closed_run": closed_run or None})
    return 0
