"""Every command ended within its deadline, and every worker group that stalled was recovered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from .. import views
from ..model import events
from ..model.event import Event
from ..model.frozen import dataclass
from ..model.run import Run
from ..model.verdict import Verdict

#: Timers of the orchestrator wait on purpose; a hold is released when its fault has acted; an inspection may outlive its gang.
WAITS = (events.Timer.NAME, events.RankRelease.NAME, events.GangInspect.NAME)

#: After these events a node need not respond until it is started again or healed.
LOSSES = (events.NodeExit, events.NodeSilent, events.NodeKill, events.FaultAct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``slack_s``: how much later than its deadline the outcome of a command may be recorded."""

    slack_s: float = 1.0


def check(run: Run, params: Params) -> Verdict:
    """Commands to a node that is known to be lost, silent or paused do not count: that is a loss, not a hang."""
    ops = views.operations(run.history)
    doubts = views.not_ended(run.history)
    outages = _outages(run)
    failures = [finding for op in ops for finding in _hung(outages, op, params, ended=not doubts)]
    failures += [*_stalled(run, ended=not doubts), *_wall_time(run)]
    text = f"{len(ops)} commands ended in time, slowest {_slowest(run, ops)}"
    return views.conclude("no-hang", text, failures=failures, doubts=doubts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outages:
    """The events that may excuse a late outcome. ``nodes``: node -> its losses and restarts; ``heals_of_hosts``: keys of commands."""

    when: Callable[[Event], float]
    controller: Sequence[Event]
    nodes: Mapping[str, Sequence[Event]]
    heals_of_hosts: Collection[str | None]


def _outages(run: Run) -> _Outages:
    """Collect the outages in one pass over the history, which has many events for each of many commands."""
    nodes: dict[str, list[Event]] = {}
    for event in run.history.events:
        if event.node and (event.subject in LOSSES or _restores(event)):
            nodes.setdefault(event.node, []).append(event)
    heals = run.history.of(events.FaultHeal)
    return _Outages(
        when=views.clock(run.history),
        controller=run.history.of(events.RunResumed, events.ControllerLate),
        nodes=nodes,
        heals_of_hosts={event.key for event in heals if event.data.act and event.data.act.of_host},
    )


def _hung(outages: _Outages, op: views.Operation, params: Params, *, ended: bool) -> Iterator[views.Finding]:
    outcome = op.outcome
    if outcome is None:
        if ended:
            yield views.finding(f"{op.f} {op.key} had no outcome when the run ended", op.invoke)
        return
    if op.f in WAITS or _is_lost(outages, op):
        return
    if outcome.type == "info":
        yield views.finding(
            f"{op.f} on {op.node or 'the controller'} had an unknown outcome: {getattr(outcome.data, 'reason', None)}",
            op.invoke,
            outcome,
        )
    elif op.deadline_s is not None and _late(outages, op, outcome) > op.deadline_s + params.slack_s:
        took = _late(outages, op, outcome)
        yield views.finding(f"{op.f} on {op.node} took {took:.1f} s of {op.deadline_s:g} s", op.invoke, outcome)


def _late(outages: _Outages, op: views.Operation, outcome: Event) -> float:
    """Seconds from the command to its outcome, without times in which the controller slept or did not exist."""
    between = [event for event in outages.controller if op.invoke.seq < event.seq <= outcome.seq]
    if any(event.kind is events.RunResumed for event in between):
        return 0.0
    slept = sum(event.data.late_s or 0.0 for event in between)
    return outages.when(outcome) - outages.when(op.invoke) - slept


def _is_lost(outages: _Outages, op: views.Operation) -> bool:
    """Return whether the node was lost, or paused by a fault, when the command ended. Healing a host does not bring back its nodes."""
    if op.node is None or op.outcome is None:
        return False
    about = [event for event in outages.nodes.get(op.node, ()) if event.seq < op.outcome.seq]
    heals = (event for event in about if _restores(event) and event.key not in outages.heals_of_hosts)
    restored = max((event.seq for event in heals if event.seq < op.invoke.seq), default=0)
    return any(event.seq > restored and event.subject in LOSSES and event.seq != op.invoke.seq for event in about)


def _restores(event: Event) -> bool:
    return event.kind in (events.NodeApplyDone, events.FaultHealDone)


def _stalled(run: Run, *, ended: bool) -> Iterator[views.Finding]:
    """Gangs that stalled without a recovery."""
    for event in run.history.of(events.GangStalled):
        after = [decided for decided in run.history.of(events.RecoveryDecided) if decided.seq > event.seq]
        if ended and not after:
            yield views.finding(f"the worker group stalled for {event.data.since_s} s and was not recovered", event)


def _wall_time(run: Run) -> Iterator[views.Finding]:
    for event in run.history.of(events.TimerDone):
        if event.key == "wall":
            yield views.finding(f"the run was not finished after {run.trial.liveness.wall_s:g} s", event)


def _slowest(run: Run, ops: tuple[views.Operation, ...]) -> str:
    when = views.clock(run.history)
    took = [(when(op.outcome) - when(op.invoke), op.f) for op in ops if op.outcome is not None and op.f not in WAITS]
    return "{1} {0:.3f} s".format(*max(took)) if took else "none"
