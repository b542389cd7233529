"""No process of any gang is left: every node of every epoch was counted empty, or is proved dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.act import Primitive
from ..model.event import Event
from ..model.events import FaultAct, FaultVerified, GangStopDone, NodeEnded, NodeExit, NodeKillDone
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """gang.stop and node.kill answer how many processes are left; a verified power-off, or the end of a container, left none."""
    gangs = views.gangs(run.history)
    doubts = [
        *(one for gang in gangs for one in _uncounted(run, gang)),
        *views.unended(run.history),
        *views.unstarted(run.history),
    ]
    nodes = sum(len(gang.starts) for gang in gangs)
    text = f"nothing left on {nodes} node{'s' * (nodes != 1)} of {len(gangs)} epoch{'s' * (len(gangs) != 1)}"
    return views.conclude("no-orphans", text, failures=_left(run), doubts=doubts)


def _left(run: Run) -> Iterator[views.Finding]:
    """A count above 0 stands, unless a later count of the same node is 0."""
    for event in _counts(run):
        left = event.data.left
        if left != 0 and not any(e.seq > event.seq and e.node == event.node and e.data.left == 0 for e in _counts(run)):
            yield views.found(f"{left} processes were left on {event.node} by {event.f}", event)


def _counts(run: Run) -> list[Event]:
    counts = run.history.of(GangStopDone, NodeKillDone, NodeEnded)
    return [e for e in counts if e.type in ("ok", "note") and e.data.left is not None]


def _uncounted(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    for start in gang.starts:
        proofs = (event for event in run.history.events if event.seq > start.invoke.seq and event.node == start.node)
        if not any(_proves(run, event, gang.epoch) for event in proofs):
            yield views.found(f"nobody counted what epoch {gang.epoch} left on {start.node}", start.invoke)


def _proves(run: Run, event: Event, epoch: int) -> bool:
    """A later epoch's count covers the earlier ones: it looks for the mark of the node, not of the epoch."""
    match event.data:
        case NodeExit() | NodeEnded():
            return event.data.left == 0 and event.source.incarnation is not None
        case GangStopDone() | NodeKillDone() if event.type == "ok":
            return event.data.left == 0 and (event.epoch is None or event.epoch >= epoch)
        case FaultVerified():
            return _powers_off(run, event.data.id)
    return False


def _powers_off(run: Run, id: str) -> bool:
    """Whether that fault ends every process of its node, so that its verification is a count."""
    for op in views.operations(run.history, FaultAct):
        order = op.invoke.data
        if order.id == id:
            return order.act is not None and any(map(_of_node, order.act.verify))
    return False


def _of_node(primitive: Primitive) -> bool:
    """Power of the node itself. That a host does not answer says nothing about what still runs there."""
    return primitive.kind == "power" and bool(primitive.args.get("of", "node") == "node")
