"""No process of any worker group is left: every node of every start had no process, or is proved dead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .. import views
from ..model import events
from ..model.act import Primitive
from ..model.event import Event
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True


def check(run: Run, params: Params) -> Verdict:
    """Judge by the processes that gang.stop and node.kill counted; a verified power-off, or the end of a container, leaves none."""
    gangs = views.gangs(run.history)
    doubts = [
        *(finding for gang in gangs for finding in _uncounted(run, gang)),
        *_kept(run),
        *views.not_ended(run.history),
        *views.not_started(run.history),
    ]
    nodes = sum(len(gang.starts) for gang in gangs)
    text = f"no process left on {nodes} node{'s' * (nodes != 1)} of {len(gangs)} start{'s' * (len(gangs) != 1)}"
    return views.conclude("no-orphans", text, failures=_left(run), doubts=doubts)


def _kept(run: Run) -> Iterator[views.Finding]:
    """Nodes that did not live when the run began, were ordered to start, and are not known to have ended."""
    absent = {name for name, facts in views.begin_nodes(run.history).items() if not facts.incarnation}
    last = {op.node: op for op in views.operations(run.history, events.NodeApply) if op.node in absent}
    ends = (events.NodeKillDone, events.NodeExit, events.NodeEnded)
    for node, op in last.items():
        is_over = any(
            e.kind in ends and e.type in ("ok", "note") and e.node == node and e.seq > op.invoke.seq
            for e in run.history.events
        )
        if not is_over and not (op.outcome and op.outcome.type == "fail"):
            yield views.finding(f"{node} was started for this run, and it is not known that it ended", op.invoke)


def _left(run: Run) -> Iterator[views.Finding]:
    """Counts above 0, unless a later count of the same node is 0."""
    counts = _counts(run)
    for event in counts:
        left = event.data.left
        if left != 0 and not any(e.seq > event.seq and e.node == event.node and e.data.left == 0 for e in counts):
            yield views.finding(f"{left} processes were left on {event.node} by {event.f}", event)


def _counts(run: Run) -> list[Event]:
    kinds = (events.GangStopDone, events.NodeKillDone, events.NodeEnded)
    counts = [e for e in run.history.events if e.kind in kinds and e.type in ("ok", "note")]
    return [event for event in counts if event.data.left is not None]


def _uncounted(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    by_node: dict[str | None, list[Event]] = {}
    for event in run.history.events:
        by_node.setdefault(event.node, []).append(event)
    for start in gang.starts:
        proofs = (event for event in by_node[start.node] if event.seq > start.invoke.seq)
        if not any(_proves(run, event, gang.epoch) for event in proofs):
            yield views.finding(
                f"the processes that {views.start_name(gang.epoch)} left on {start.node} were not counted", start.invoke
            )


def _proves(run: Run, event: Event, epoch: int) -> bool:
    """The count of a later attempt covers the earlier ones: processes are found by the tag of their node."""
    if event.kind in (events.NodeExit, events.NodeEnded):
        return event.data.left == 0 and event.source.incarnation is not None
    if event.type == "ok" and event.kind in (events.GangStopDone, events.NodeKillDone):
        is_covered = event.epoch is None or event.epoch >= epoch
        return event.data.left == 0 and is_covered and not _still_exiting(run, event)
    if event.kind is not events.FaultVerified or not _powers_off(run, event.data.id):
        return False
    evidence = event.data.evidence
    return not (isinstance(evidence, Mapping) and evidence.get("left"))


def _still_exiting(run: Run, event: Event) -> set[int]:
    """Processes that were exiting when this stop was over, and whose exit the agent did not report afterwards."""
    exiting = (isinstance(event.data, events.GangStopDone) and event.data.exiting) or ()
    reported = {
        exit.data.pid
        for exit in (run.history.of(events.RankExit) if exiting else ())
        if exit.seq > event.seq
        and (exit.node, exit.source.incarnation) == (event.node, event.source.incarnation)
        and (exit.epoch or 0) <= (event.epoch or 0)
    }
    return set(exiting) - reported


def _powers_off(run: Run, id: str) -> bool:
    """Return whether that fault ends every process of its node, so that its verification is a count."""
    for op in views.operations(run.history, events.FaultAct):
        if op.invoke.data.id == id:
            act = op.invoke.data.act
            return act is not None and any(map(_of_node, act.verify))
    return False


def _of_node(primitive: Primitive) -> bool:
    """Power of the node itself. A host that does not respond may still run processes."""
    return primitive.kind == "power" and primitive.args.get("of", "node") == "node"
