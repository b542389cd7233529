"""Accept floors of a hardware model from runs that passed, and show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...app.nightly import floors
from ...app.nightly.floors import AcceptFloorsRequest, ShowFloorsRequest
from ...app.places import short_path
from ..inputs import options
from ..inputs.session import Session
from ..render.terminal import Terminal

if TYPE_CHECKING:
    from ...nightly.baselines import Floor


@options.group()
def command() -> None:
    """Accept floors of a hardware model from runs that passed, and show them.

    \b
    ccbed baseline accept runs/2026-11-23T02-00-07Z-night-standard-3f9c --margin 8%
    ccbed baseline show
    """


@options.shows(
    AcceptFloorsRequest, floors.accept, below=command,
    short_help="Write the floors of RUN or NIGHT into the baseline, for review.",
)  # fmt: skip
def accept(session: Session, accepted: tuple[floors.Accepted, ...]) -> None:
    """Write the floors of RUN or NIGHT into the baseline of its hardware model, for review. Comments in it are kept."""
    terminal = session.terminal
    for item in accepted:
        count, where = len(item.floors), "in" if item.written else "would be in"
        text = f"{item.hardware}: {count} floor{'s' * (count > 1)} {where} {short_path(item.file)}"
        terminal.line(f"{text}; review them before you commit it")
        _table(terminal, item.floors)


@options.verb(ShowFloorsRequest, below=command, short_help="Print the floors of every baseline.")
def show(session: Session, request: ShowFloorsRequest) -> int:
    """Print the floors of every baseline, or of those whose hardware contains MODEL."""
    terminal, known = session.terminal, floors.known(request)
    if session.is_json:
        terminal.json(known)
        return 0
    if not known:
        terminal.line(f"no baseline in {request.baselines}     accept one: ccbed baseline accept RUN|NIGHT")
    for baseline in known:
        terminal.line(f"{baseline.hardware}     {short_path(baseline.file)}")
        _table(terminal, baseline.floors)
    return 0


def _table(terminal: Terminal, listed: tuple[Floor, ...]) -> None:
    rows = [
        (
            floor.metric, f"{'≥' if floor.better == 'higher' else '≤'} {floor.floor:g}", floor.unit, f"{floor.measured:g}",
            f"{floor.margin:.0%}", floor.n, floor.accepted, floor.evidence[0] if floor.evidence else "",
        )
        for floor in listed
    ]  # fmt: skip
    terminal.table(("METRIC", "FLOOR", "UNIT", "MEASURED", "MARGIN", "N", "ACCEPTED", "EVIDENCE"), rows)
