"""Accept floors of a hardware model from runs that passed, and show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...app.places import short_path
from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ...cli.render.terminal import Terminal
from ..app import accepted_floors
from ..app.accepted_floors import AcceptFloorsRequest, ShowFloorsRequest

if TYPE_CHECKING:
    from ..baselines import Floor


@options.group()
def command() -> None:
    """Accept floors of a hardware model from runs that passed, and show them.

    \b
    ccbed baseline accept runs/2026-11-23T02-00-07Z-night-standard-3f9c
    ccbed baseline accept 3f9c --node n1 --because "driver 560 is 3 % slower in gemm"
    ccbed baseline show
    """


@options.shows(
    AcceptFloorsRequest, accepted_floors.accept, below=command,
    short_help="Write floors into the baseline, or accept a new level.",
)  # fmt: skip
def accept(session: Session, accepted: tuple[accepted_floors.Accepted | accepted_floors.AcceptedLevel, ...]) -> None:
    """Write the floors of runs and nights into the baseline of their hardware model, for review: the worst node less the margin.
    Comments in it are kept. With --because a night begins a new level instead: a change that is wanted fails no later night.
    """
    terminal = session.terminal
    for item in accepted:
        if isinstance(item, accepted_floors.AcceptedLevel):
            _level(terminal, item)
            continue
        count, where = len(item.floors), "in" if item.written else "would be in"
        text = f"{item.hardware}: {count} floor{'s' * (count > 1)} {where} {short_path(item.file)}"
        terminal.line(f"{text}; review them before you commit it")
        _table(terminal, item.floors, item.spare)


def _level(terminal: Terminal, item: accepted_floors.AcceptedLevel) -> None:
    level, begins = item.level, "begins" if item.written else "would begin"
    nodes, metrics = ", ".join(level.nodes) or "all nodes", ", ".join(level.metrics) or "all metrics"
    terminal.line(f"bed {level.bed}: night {level.night} {begins} a new level for {nodes}, {metrics}: {level.because}")
    terminal.line("later nights are compared with it and the nights after it; this night keeps its verdict")


@options.verb(ShowFloorsRequest, below=command, short_help="Print the floors of every baseline.")
def show(session: Session, request: ShowFloorsRequest) -> int:
    """Print the floors of every baseline, or of those whose hardware contains MODEL."""
    terminal, known = session.terminal, accepted_floors.known(request)
    if session.is_json:
        terminal.json(known)
        return 0
    if not known:
        terminal.line(f"no baseline in {request.baselines}     accept one: ccbed baseline accept RUN|NIGHT")
    for baseline in known:
        terminal.line(f"{baseline.hardware}     {short_path(baseline.file)}")
        _table(terminal, baseline.floors)
    return 0


def _table(terminal: Terminal, listed: tuple[Floor, ...], spare: tuple[float, ...] = ()) -> None:
    """``spare``: of each floor, what the accepted night has; without it there is no such column."""
    rows = [
        (
            floor.metric, f"{'≥' if floor.better == 'higher' else '≤'} {floor.floor:g}", floor.unit, f"{floor.measured:g}",
            f"{floor.margin:.0%}", *((f"{spare[index]:.1%}",) if spare else ()), floor.n, floor.accepted,
            floor.evidence[0] if floor.evidence else "",
        )
        for index, floor in enumerate(listed)
    ]  # fmt: skip
    titles = (
        "METRIC",
        "FLOOR",
        "UNIT",
        "MEASURED",
        "MARGIN",
        *(("TO SPARE",) if spare else ()),
        "N",
        "ACCEPTED",
        "EVIDENCE",
    )
    terminal.table(titles, rows)
