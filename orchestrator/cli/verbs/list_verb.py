"""List plugins, trials, runs and beds."""

from __future__ import annotations

from collections.abc import Sequence

from ...app import listing
from ...app.listing import ListRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render.terminal import Terminal


@options.shows(ListRequest, listing.run)
def command(session: Session, listed: listing.Listed) -> None:
    """List faults, checkers, algorithms, workloads, reports, trials, suites, examples, runs, beds or inventories (default: plugins)."""
    terminal = session.terminal
    for kind, rows in listed.rows.items():
        if listed.only is None:
            terminal.line(terminal.style(kind, "head"))
        _show(terminal, kind, rows)


def _show(terminal: Terminal, kind: str, rows: Sequence[listing.Row]) -> None:
    if not rows:
        terminal.line(f"  no {kind}")
        return
    columns = [name for name in rows[0] if name not in ("settings", "distribution", "directory")]
    if columns != ["name", "summary"]:
        terminal.table([name.upper() for name in columns], [[row[name] for name in columns] for row in rows])
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        names = row.get("settings")
        settings = f" [{', '.join(names)}]" if names and not isinstance(names, int) else ""
        origin = f" (of {row['distribution']})" if row.get("distribution") else ""
        terminal.line(f"  {row['name']:<{width}}  {row['summary']}{settings}{origin}")
