"""End a bed: all its processes and directories; verified."""

from __future__ import annotations

from ...app import down
from ...app.requests import DownRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.verb(DownRequest, options.vault)
def command(session: Session, request: DownRequest) -> int:
    """End a bed: all its processes and directories, and verify that none is left. Runs keep their bundles."""
    screen = session.silence_for_json()
    ended = down.run(session, request)
    if session.is_json:
        screen.json(ended)
    return 0
