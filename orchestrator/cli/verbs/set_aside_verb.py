"""Set a host aside with a reason, list what is set aside, or take a host or a node back."""

from __future__ import annotations

from ...app.hosts import set_aside
from ...app.hosts.set_aside import SetAsideRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.verb(SetAsideRequest)
def command(session: Session, request: SetAsideRequest) -> int:
    """Set HOST aside: `up`, `run` and `nightly` place no node there until it is ended. Without a name, list what is set aside.

    \b
    ccbed set-aside h2 --reason "a fan is replaced" --until 3d
    ccbed set-aside h2 n5 --end

    Nodes that are there stay as they are, and get no rank; `ccbed down --limit HOST` ends containers. The host may be switched off.

    Two recorded nights of ten that accuse a node set it aside as well: a ready spare takes its place. Sweeps and the probes of a night
    still measure such a node. --include-quarantined gives it ranks all the same.
    """
    terminal, changed = session.terminal, set_aside.run(session, request)
    for text in changed.warnings:
        terminal.warn(text)
    if session.is_json:
        terminal.json(changed.document)
        return 0
    if not request.names and changed.asides:
        rows = [(aside.name, aside.host, aside.by, aside.since, aside.until, aside.reason) for aside in changed.asides]
        terminal.table(("NAME", "HOST", "BY", "SINCE", "UNTIL", "REASON"), rows)
    terminal.lines(changed.lines)
    return 0
