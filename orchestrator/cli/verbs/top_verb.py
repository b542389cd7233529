"""Show nodes, ranks, steps per second, faults and recovery of a run, live."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import chain
from typing import IO

from ...app.recorded import follow
from ...app.recorded.follow import WatchRequest
from ...model.event import Event, History
from ...model.trial import Trial
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import top_view

#: Seconds between two pictures.
_EVERY_S = 0.25


@options.verb(WatchRequest)
def command(session: Session, request: WatchRequest) -> int:
    """Show the nodes of RUN, their ranks and speed, faults and recoveries, until it has ended; elsewhere than on a terminal, once."""
    watched, terminal = follow.run(session, request), session.terminal
    name, trial, history = watched.directory.name, watched.trial, watched.history()
    if session.is_json:
        nodes = [
            dict(zip(("node", "ranks", "state", "step", "steps_per_s"), row, strict=True))
            for row in top_view.rows_of(trial, history)
        ]
        terminal.json({"run": name, "nodes": nodes})
    elif not terminal.live:
        terminal.lines(top_view.lines(name, trial, history))
    else:
        follow_live(terminal.out, name, trial, watched.events())
    return 0


def follow_live(out: IO[str], name: str, trial: Trial, events: Iterable[Event]) -> None:
    """Show the run in place until its events end."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    past, shown_at = list[Event](), 0.0
    with Live(console=Console(file=out, force_terminal=True), auto_refresh=False) as live:
        for event in chain(events, (None,)):
            past += [event] if event else []
            if event is None or time.monotonic() >= shown_at + _EVERY_S:
                live.update(Text("\n".join(top_view.lines(name, trial, History(tuple(past))))), refresh=True)
                shown_at = time.monotonic()
