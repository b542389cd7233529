"""Each loss and its recovery: the milestones in the controller's time, the phases between them, the steps that were lost."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ..model import events
from ..model.event import Event, History
from ..model.events import RecoveryDecided, RecoveryReplaced
from ..model.frozen import dataclass, replace
from ..model.payload import Payload
from ..model.run import StepRecord
from ..model.trial import Trial
from .command_outcomes import operations
from .event_order import Clocks, clocks
from .fault_stages import FaultTrace, traces
from .gangs import Gang, epoch_of, gangs, is_abnormal, root_cause
from .lineage import chosen_checkpoints, committed_checkpoints
from .progress import caught_up, lost_steps

#: In this order; a phase is the difference of the running maximum of two neighbours, so phases sum to the TTR.
MILESTONES = (
    "injected",
    "detected",
    "old ranks gone",
    "nodes ready",
    "store ready",
    "joined",
    "restored",
    "first step",
)
#: Not reported by a script that joins no process group, and by any script's ranks after they have loaded a checkpoint.
OF_OWN_WORKLOADS = ("joined", "restored")
#: Events after which a lost node is replaced.
Decision: TypeAlias = RecoveryDecided | RecoveryReplaced
_DECISIONS = (RecoveryDecided, RecoveryReplaced)
PHASES = ("detect", "stop", "node", "store", "join", "restore", "step")
#: Phase -> what was reached at its end, as people read it.
STAGES = dict(
    zip(PHASES, ("noticed", "stopped", "node ready", "store", "joined", "restored", "first step"), strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """A point in a failover: when the last rank or node (``who``) reached it, in seconds since the run began."""

    name: str
    t: float
    seq: int
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One loss and its recovery: ``index`` from 0, ``epoch`` of the new attempt, ``fault``: the id of the planned fault.

    ``ttr_s``, ``detect_s`` and ``caught_up_s`` are seconds since the injection, or, without a planned fault, since the
    detection (``detect_s`` is None then). ``phases``: (name, seconds), summing to ``ttr_s``.
    ``lost_steps``: executed before and again after. ``newest_step``: of the newest checkpoint that the kept lineage
    had committed before the new attempt. None: not reached, or not known.
    """

    index: int
    epoch: int
    lost: tuple[str, ...]
    failed_ranks: tuple[int, ...]
    detector: str
    fault: str | None
    policies: Mapping[str, str]
    milestones: tuple[Milestone, ...]
    phases: tuple[tuple[str, float], ...]
    ttr_s: float | None
    detect_s: float | None
    caught_up_s: float | None = None
    resume_step: int | None = None
    resume_name: str | None = None
    newest_step: int | None = None
    lost_steps: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One recovery: its decision, the gangs before and after it, its detector and the planned fault that caused it."""

    history: History
    when: Callable[[Event], float]
    times: Clocks
    decided: Event[Decision]
    epoch: int
    old: Gang | None
    new: Gang | None
    detector: Event | None
    fault: FaultTrace | None


def failovers(
    trial: Trial, history: History, steps: Iterable[StepRecord] = (), resumes: Mapping[int, int] | None = None
) -> tuple[Failover, ...]:
    """The recoveries of a run in order, each with its milestones.

    ``resumes``: attempt -> the step that a script resumed from, where it is known; None: as the history states.
    """
    records = tuple(steps)
    recoveries: list[Failover] = []
    unclaimed = [trace for trace in traces(trial, history) if trace.first(events.FaultInjected)]
    for decided in history.of(*_DECISIONS):
        case = _case(history, decided, unclaimed)
        if case.fault is not None:
            unclaimed = [trace for trace in unclaimed if not _claimed(trace, case)]
        failover = _failover(len(recoveries), case, records, resumes)
        recoveries.append(failover if decided.kind is RecoveryDecided else _within_attempt(failover, decided))
    return tuple(recoveries)


def _within_attempt(failover: Failover, replaced: Event[Decision]) -> Failover:
    """The job's own launcher recovers, in its own attempt: the history shows the loss and its detection only."""
    points = failover.milestones[:2]
    return replace(
        failover, epoch=replaced.epoch or 0, milestones=points, phases=_phases(points), ttr_s=None, caught_up_s=None,
        resume_step=None, resume_name=None, newest_step=None, lost_steps=(),
    )  # fmt: skip


def _case(history: History, decided: Event[Decision], unclaimed: Sequence[FaultTrace]) -> _Case:
    known = gangs(history)
    old = max((g for g in known if g.began.seq < decided.seq), key=lambda g: g.epoch, default=None)
    named = epoch_of(decided)
    after = old.epoch + 1 if old else 0
    epoch = named if named is not None and named >= after else after
    times = clocks(history)
    detector = _detector(history, decided, old, epoch, times)
    return _Case(
        history=history,
        when=times.at,
        times=times,
        decided=decided,
        epoch=epoch,
        old=old,
        new=next((g for g in known if g.epoch == epoch), None),
        detector=detector,
        fault=_cause(decided, detector, unclaimed, times),
    )


def _detector(history: History, decided: Event[Decision], old: Gang | None, epoch: int, times: Clocks) -> Event | None:
    """The first detector event about the attempts before ``epoch``, after any earlier decision."""
    since = max((e.seq for e in history.of(*_DECISIONS) if e.seq < decided.seq), default=0)
    oldest = old.epoch if old else 0
    detections = [
        event
        for event in history.events
        if max(since, old.began.seq if old else 0) < event.seq < decided.seq
        and is_abnormal(event)
        and (event.epoch is None or oldest <= event.epoch < epoch)
    ]
    nodes = {*(old.nodes if old else ()), *(decided.data.lost or ())}
    own = [event for event in detections if event.node is None or event.node in nodes] or detections
    return functools.reduce(lambda first, event: event if times.before(event, first) else first, own) if own else None


def _cause(
    decided: Event[Decision], detector: Event | None, unclaimed: Sequence[FaultTrace], times: Clocks
) -> FaultTrace | None:
    """The earliest injected fault that can have caused this recovery: on a lost node, else any before the detection."""
    lost = set(decided.data.lost or ()) | ({detector.node} if detector else set())
    limit = detector or decided
    starts = [(trace, fault_start(trace, limit, times)) for trace in unclaimed]
    possible = [trace for trace, event in starts if event is not None and not times.before(limit, event)]
    late = [trace for trace, event in starts if event is not None and event.seq < decided.seq and trace.node in lost]
    return next(iter([trace for trace in possible if trace.node in lost] or late or possible), None)


def fault_start(trace: FaultTrace, limit: Event, times: Clocks) -> Event | None:
    """Return where the time of a fault begins that event ``limit`` detected: the return of the injecting call.

    A slow call may be detected before it returns. Then the time counts from its beginning, or, where that is not
    recorded, from its command.
    """
    returned, began = trace.first(events.FaultInjected), trace.began
    if returned is None or began is None or times.at(returned) <= times.at(limit):
        return returned
    if times.at(began) > times.at(limit) and trace.acts:
        command = trace.acts[0].invoke
        return command if times.at(command) <= times.at(limit) else began
    return began


def _claimed(trace: FaultTrace, case: _Case) -> bool:
    """One recovery accounts for every fault on its lost nodes that was injected before the decision."""
    began = trace.began
    lost = case.decided.data.lost or ()
    if trace is case.fault or began is None or trace.node not in lost:
        return trace is case.fault
    return began.seq < case.decided.seq or bool(case.times.before(began, case.decided))


def _failover(index: int, case: _Case, records: Sequence[StepRecord], resumes: Mapping[int, int] | None) -> Failover:
    decision = case.decided.data
    cause = root_cause(case.history, case.old) if case.old and not decision.lost else None
    points = _milestones(case)
    start = points[0].t if points else 0.0
    reached = {point.name: point.t for point in points}
    chosen = chosen_checkpoints(case.history).get(case.epoch)
    stated = chosen.data.step if chosen else None
    resume = stated if resumes is None else resumes.get(case.epoch)
    committed = committed_checkpoints(case.history, case.new) if case.new else ()
    detected = reached.get("detected")
    return Failover(
        index=index,
        epoch=case.epoch,
        lost=decision.lost or (),
        failed_ranks=(cause.rank,) if cause else decision.failed or (),
        cause=cause.how if cause else "",
        detector=_name(case),
        fault=case.fault.plan.id if case.fault else None,
        policies=decision.policy or {},
        milestones=points,
        phases=_phases(points),
        ttr_s=_since(start, max((p.t for p in points), default=0.0) if "first step" in reached else None),
        detect_s=_since(start, max(detected, start)) if case.fault and detected is not None else None,
        caught_up_s=_since(start, caught_up(case.history, records, case.epoch)),
        resume_step=resume,
        resume_name=(chosen.data.name or None) if chosen else None,
        newest_step=committed[-1].data.step if committed else None,
        lost_steps=lost_steps(case.history, records, case.epoch, resume, resumes),
        slots=decision.slots or (),
    )


def _since(start: float, t: float | None) -> float | None:
    return None if t is None else t - start


def _name(case: _Case) -> str:
    """The detector's name by its event; without an event as the decision states it."""
    return case.detector.f if case.detector else case.decided.data.detector or ""


def _phases(points: Sequence[Milestone]) -> tuple[tuple[str, float], ...]:
    """Differences of the running maximum. Without a planned fault there is no time to detection."""
    by_name = {point.name: point.t for point in points}
    high = points[0].t if points else 0.0
    phases: list[tuple[str, float]] = []
    for name, phase in zip(MILESTONES[1:], PHASES, strict=True):
        if name not in by_name:
            if name in OF_OWN_WORKLOADS:
                continue
            break
        top = max(high, by_name[name])
        phases.append((phase, top - high))
        high = top
    return tuple(phases)


def _milestones(case: _Case) -> tuple[Milestone, ...]:
    """The points that were reached, up to the first that was not."""
    since = fault_start(case.fault, case.detector or case.decided, case.times) if case.fault else None
    reached = {
        "injected": [since or case.detector or case.decided],
        "detected": [case.detector or case.decided],
        "old ranks gone": _old_gang_ended(case),
        "nodes ready": _nodes_ready(case),
        "store ready": _store_ready(case),
        "joined": _ranks(case, events.RankJoined),
        "restored": _ranks(case, events.RankRestored),
        "first step": _ranks(case, events.RankStep),
    }
    points: list[Milestone] = []
    for name in MILESTONES:
        if not reached[name]:
            if name in OF_OWN_WORKLOADS and reached["first step"]:
                continue
            break
        last = max(reached[name], key=case.when)
        points.append(Milestone(name=name, t=case.when(last), seq=last.seq, who=_who(last)))
    return tuple(points)


def _who(event: Event) -> str:
    rank = getattr(event.data, "rank", None)
    return f"rank {rank}" if rank is not None else event.node or ""


def _old_gang_ended(case: _Case) -> list[Event]:
    """The outcomes of gang.stop for the attempts before, and the exits of the lost nodes; without any, the decision."""
    if case.old is None:
        return [case.decided]
    epochs = range(case.old.epoch, case.epoch)
    stops = [op for op in operations(case.history, events.GangStop) if epoch_of(op.invoke) in epochs]
    outcomes = [op.outcome for op in stops if op.outcome is not None and op.outcome.seq < _limit(case)]
    lost = case.decided.data.lost or ()
    exits = [
        event
        for event in case.history.events
        if event.kind in (events.NodeExit, events.NodeSilent)
        and event.node in lost
        and case.old.began.seq < event.seq < case.decided.seq
    ]
    return [*outcomes, *exits] or [case.decided]


def _nodes_ready(case: _Case) -> list[Event]:
    """The decision, and the starts of nodes that the new gang needs; empty as long as one of them is not started."""
    slots = set(case.decided.data.slots or ()) or set(case.new.nodes if case.new else ())
    applied = [
        op
        for op in operations(case.history, events.NodeApply)
        if op.node in slots and case.decided.seq < op.invoke.seq < _limit(case)
    ]
    if any(op.ok is None for op in applied):
        return []
    return [case.decided, *(op.ok for op in applied if op.ok is not None)]


def _store_ready(case: _Case) -> list[Event]:
    stores = operations(case.history, events.StoreOpen)
    return [op.ok for op in stores if op.ok is not None and epoch_of(op.invoke) == case.epoch]


def _ranks(case: _Case, kind: type[Payload]) -> list[Event]:
    """The note of every rank of the new attempt; empty as long as one is missing."""
    if case.new is None or not case.new.is_complete(kind):
        return []
    return [event for rank, event in case.new.by_rank(kind).items() if rank in case.new.ranks]


def _limit(case: _Case) -> int:
    """The event before which every command of this recovery was issued."""
    return case.new.began.seq if case.new else _next_decision(case)


def _next_decision(case: _Case) -> int:
    later = (
        event.seq
        for event in case.history.of(events.RecoveryDecided, events.RecoveryGrown)
        if event.seq > case.decided.seq
    )
    return min(later, default=sys.maxsize)
