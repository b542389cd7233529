"""Show a run while it happens, or one that has ended."""

from __future__ import annotations

from ...app.places import short_path
from ...app.recorded import follow
from ...app.recorded.follow import WatchRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import live_lines, summary_lines


@options.verb(WatchRequest)
def command(session: Session, request: WatchRequest) -> int:
    """Show RUN as it happens, until it has ended; the exit code is that of the run."""
    watched, terminal = follow.run(session, request), session.terminal
    where = short_path(watched.directory)
    printer = live_lines.Printer(
        terminal=terminal, trial=watched.trial, slots=watched.plan.slots, quiet=session.is_json
    )
    printer.head([f"run    {where}"])
    for event in watched.events():
        printer.event(event)
    if result := watched.result():
        return summary_lines.show(session, result, as_json=session.is_json)
    if session.is_json:
        terminal.json({"run": watched.directory.name, "directory": str(watched.directory), "exit": None})
    else:
        terminal.line(f"still open     continue: ccbed watch {where}")
    return 0
