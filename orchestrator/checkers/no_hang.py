"""Nothing hung: every command was answered within its deadline, and a gang that stood still was recovered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import (
    ControllerLate,
    FaultAct,
    FaultHeal,
    FaultHealDone,
    GangStalled,
    NodeApplyDone,
    NodeExit,
    NodeKill,
    NodeSilent,
    RankRelease,
    RecoveryDecided,
    RunResumed,
    Timer,
    TimerDone,
)
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False

#: Timers of the orchestrator wait on purpose; a hold is released when its fault has acted.
WAITS = (Timer.NAME, RankRelease.NAME)

#: After these a node owes no answer until it is started again or healed.
LOSSES = (NodeExit, NodeSilent, NodeKill, FaultAct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``slack_s``: how much later than its deadline an answer may be written down."""

    slack_s: float = 1.0


def check(run: Run, params: Params) -> Verdict:
    """Silence of a node that is known to be gone, silent or paused is no hang; it is that loss."""
    ops = views.operations(run.history)
    doubts = views.unended(run.history)
    failures = [one for op in ops for one in _hung(run, op, params, ended=not doubts)]
    failures += [*_stalled(run, ended=not doubts), *_walled(run)]
    text = f"{len(ops)} commands answered in time, slowest {_slowest(run, ops)}"
    return views.conclude("no-hang", text, failures=failures, doubts=doubts)


def _hung(run: Run, op: views.Operation, params: Params, *, ended: bool) -> Iterator[views.Finding]:
    outcome = op.outcome
    if outcome is None:
        if ended:
            yield views.found(f"{op.f} {op.key} was still open when the run ended", op.invoke)
        return
    if op.f in WAITS or _gone(run, op):
        return
    if outcome.type == "info":
        yield views.found(
            f"{op.f} on {op.node or 'the controller'} gave no answer: {getattr(outcome.data, 'reason', None)}",
            op.invoke,
            outcome,
        )
    elif op.deadline_s is not None and _late(run, op, outcome) > op.deadline_s + params.slack_s:
        took = _late(run, op, outcome)
        yield views.found(f"{op.f} on {op.node} took {took:.1f} s of {op.deadline_s:g} s", op.invoke, outcome)


def _late(run: Run, op: views.Operation, outcome: Event) -> float:
    """Seconds from the command to its answer, without the time in which no controller was there or it slept."""
    when = views.clock(run.history)
    between = [e for e in run.history.events if op.invoke.seq < e.seq <= outcome.seq]
    if any(event.kind is RunResumed for event in between):
        return 0.0
    slept = sum(e.data.late_s or 0.0 for e in between if e.kind is ControllerLate)
    return when(outcome) - when(op.invoke) - slept


def _gone(run: Run, op: views.Operation) -> bool:
    """Whether the node was lost, or was being paused, when the command was closed. A host that was given back brings no node."""
    if op.node is None or op.outcome is None:
        return False
    about = [event for event in run.history.events if event.node == op.node and event.seq < op.outcome.seq]
    hosts = {e.key for e in run.history.of(FaultHeal) if e.data.act is not None and e.data.act.of_host}
    back = max((e.seq for e in about if _back(e) and e.key not in hosts and e.seq < op.invoke.seq), default=0)
    return any(event.seq > back and event.subject in LOSSES and event.seq != op.invoke.seq for event in about)


def _back(event: Event) -> bool:
    return event.kind in (NodeApplyDone, FaultHealDone)


def _stalled(run: Run, *, ended: bool) -> Iterator[views.Finding]:
    """A gang that stood still must have been stopped and followed by another one."""
    for event in run.history.of(GangStalled):
        after = [decided for decided in run.history.of(RecoveryDecided) if decided.seq > event.seq]
        if ended and not after:
            yield views.found(f"the gang stood still for {event.data.since_s} s and was not recovered", event)


def _walled(run: Run) -> Iterator[views.Finding]:
    """The whole run's own limit was reached."""
    for event in run.history.of(TimerDone):
        if event.key == "wall":
            yield views.found(f"the run was not finished after {run.trial.liveness.wall_s:g} s", event)


def _slowest(run: Run, ops: tuple[views.Operation, ...]) -> str:
    when = views.clock(run.history)
    took = [(when(op.outcome) - when(op.invoke), op.f) for op in ops if op.outcome is not None and op.f not in WAITS]
    return "{1} {0:.3f} s".format(*max(took)) if took else "none"
