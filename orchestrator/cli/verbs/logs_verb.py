"""Show the output of ranks, or the log of a node agent or a host agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ...app.places import short_path
from ...app.recorded import logs
from ...app.recorded.logs import LogsRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render.terminal import Terminal

#: Characters of a value in the line of an event.
_LONGEST = 100


@options.verb(LogsRequest)
def command(session: Session, request: LogsRequest) -> int:
    """Show the output of a run's ranks, or what a node agent or a host agent did and printed."""
    terminal, wanted = session.terminal, logs.find(session, request)
    if session.is_json:
        for log, line in logs.lines(wanted, request):
            terminal.json(log.document(line), indent=None)
        return 0
    if not any(log.path.exists() and log.path.stat().st_size for log in wanted):
        paths = " ".join(short_path(log.path) for log in wanted)
        terminal.line(f"{request.what}: nothing written yet     {paths}")
    _print(terminal, wanted, request)
    return 0


def _print(terminal: Terminal, wanted: Sequence[logs.Log], request: LogsRequest) -> None:
    last: logs.Log | None = None
    for log, text in logs.parts(wanted, request):
        if last != log and (len(wanted) > 1 or last):
            terminal.line(terminal.style(f"==> {log.title} <==", "head"))
        last = log
        if log.has_events:
            terminal.lines(map(_event_line, text.splitlines()))
        else:
            terminal.block(text)
            terminal.out.flush()


def _event_line(line: str) -> str:
    """An event as ``2026-11-21 02:00:07.123Z  node.apply ok  n2  pid 4131``; a line that is no event stays as it is."""
    try:
        event = json.loads(line)
        wall = datetime.fromtimestamp(event["at"]["wall"], UTC)
        values = event.get("value") or {}
        details = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
        outcome = "" if event["type"] == "note" else f" {event['type']}"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return line
    return f"{wall:%Y-%m-%d %H:%M:%S}.{wall.microsecond // 1000:03}Z  {event['f']}{outcome}  {event.get('node') or '-'}  {details}".rstrip()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
