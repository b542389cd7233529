"""Show the nodes in quarantine, which two recorded nights accused, or release one."""

from __future__ import annotations

from ...app.hosts import drains
from ...app.hosts.drains import QuarantineRequest
from ...cli.inputs import options
from ...cli.inputs.session import Session
from ...model import codec


@options.verb(QuarantineRequest)
def command(session: Session, request: QuarantineRequest) -> int:
    """Show the nodes in quarantine, with the night and the reason, or release one.

    Two recorded nights of ten that accuse a node put it into quarantine. `run`, `nightly` and `accept` then give it no rank, and a
    ready spare takes its place; sweeps and the probes of a night still measure it. --include-quarantined gives it ranks all the same.
    """
    terminal = session.terminal
    if node := request.release:
        drains.release(session, request, node)
        if session.is_json:
            terminal.json({"released": node})
        else:
            terminal.line(f"{node} is released; earlier nights no longer count against it")
        return 0
    nodes = drains.in_quarantine(session, request)
    if session.is_json:
        terminal.json(
            [{**codec.plain(entry.last), "node": node, "since": entry.since.night} for node, entry in nodes.items()]
        )
    elif not nodes:
        terminal.line("no node is in quarantine")
    else:
        rows = [
            (node, entry.last.host, entry.since.night, entry.last.night, entry.last.reason)
            for node, entry in nodes.items()
        ]
        terminal.table(("NODE", "HOST", "SINCE", "LAST NIGHT", "REASON"), rows)
    return 0
