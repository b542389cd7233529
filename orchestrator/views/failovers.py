"""Each loss and its recovery: the milestones in the controller's time, the phases between them, the steps that were lost."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..model.event import Event, History
from ..model.events import (
    FaultInjected,
    GangStop,
    NodeApply,
    NodeExit,
    NodeSilent,
    RankJoined,
    RankRestored,
    RankStep,
    RecoveryDecided,
    StoreOpen,
)
from ..model.payload import Payload
from ..model.run import StepRecord
from ..model.trial import Trial
from .clock import Clocks, clocks
from .command_outcomes import operations
from .faults import FaultTrace, traces
from .gangs import Gang, abnormal, epoch_of, gangs
from .lineage import choices, commits
from .progress import caught_up, lost_steps
from .shapes import MILESTONES, PHASES, Failover, Milestone


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is needed to read one recovery: the decision, the gang before and after it, and the faults not yet accounted for."""

    history: History
    when: Callable[[Event], float]
    times: Clocks
    decided: Event[RecoveryDecided]
    epoch: int
    old: Gang | None
    new: Gang | None
    detector: Event | None
    fault: FaultTrace | None


def failovers(trial: Trial, history: History, steps: Iterable[StepRecord] = ()) -> tuple[Failover, ...]:
    """The recoveries of a run in order, each with its milestones."""
    records = tuple(steps)
    found: list[Failover] = []
    unclaimed = [trace for trace in traces(trial, history) if trace.first(FaultInjected)]
    for decided in history.of(RecoveryDecided):
        case = _case(history, decided, unclaimed)
        if case.fault is not None:
            unclaimed = [trace for trace in unclaimed if not _claimed(trace, case)]
        found.append(_failover(len(found), case, records))
    return tuple(found)


def _case(history: History, decided: Event[RecoveryDecided], unclaimed: Sequence[FaultTrace]) -> _Case:
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


def _detector(
    history: History, decided: Event[RecoveryDecided], old: Gang | None, epoch: int, times: Clocks
) -> Event | None:
    """The first detector that spoke of the epochs before ``epoch``, after any earlier decision."""
    since = max((e.seq for e in history.of(RecoveryDecided) if e.seq < decided.seq), default=0)
    oldest = old.epoch if old else 0
    spoke = [
        event
        for event in history.events
        if max(since, old.began.seq if old else 0) < event.seq < decided.seq
        and abnormal(event)
        and (event.epoch is None or oldest <= event.epoch < epoch)
    ]
    nodes = {*(old.nodes if old else ()), *(decided.data.lost or ())}
    mine = [event for event in spoke if event.node is None or event.node in nodes] or spoke
    return functools.reduce(lambda one, other: other if times.before(other, one) else one, mine) if mine else None


def _cause(
    decided: Event[RecoveryDecided], detector: Event | None, unclaimed: Sequence[FaultTrace], times: Clocks
) -> FaultTrace | None:
    """The earliest injected fault that can be behind this recovery: on a node that was lost, else any before the detection."""
    lost = set(decided.data.lost or ()) | ({detector.node} if detector else set())
    limit = detector or decided
    counted = [(trace, struck(trace, limit, times)) for trace in unclaimed]
    possible = [trace for trace, event in counted if event is not None and not times.before(limit, event)]
    late = [trace for trace, event in counted if event is not None and event.seq < decided.seq and trace.node in lost]
    return next(iter([trace for trace in possible if trace.node in lost] or late or possible), None)


def struck(trace: FaultTrace, limit: Event, times: Clocks) -> Event | None:
    """Where the time of a fault that ``limit`` remarked counts from: the return of the injecting call.

    What a slow call breaks may be remarked before it returns: then from where it began, or, where that was not written down,
    from where it was asked for.
    """
    returned, began = trace.first(FaultInjected), trace.struck
    if returned is None or began is None or times.at(returned) <= times.at(limit):
        return returned
    if times.at(began) > times.at(limit) and trace.acts:
        asked = trace.acts[0].invoke
        return asked if times.at(asked) <= times.at(limit) else began
    return began


def _claimed(trace: FaultTrace, case: _Case) -> bool:
    """Losses in one window are one recovery: every fault that struck before the decision is accounted for by it."""
    began = trace.struck
    lost = case.decided.data.lost or ()
    if trace is case.fault or began is None or trace.node not in lost:
        return trace is case.fault
    return began.seq < case.decided.seq or bool(case.times.before(began, case.decided))


def _failover(index: int, case: _Case, records: Sequence[StepRecord]) -> Failover:
    decided = case.decided.data
    points = _milestones(case)
    start = points[0].t if points else 0.0
    reached = {point.name: point.t for point in points}
    chosen = choices(case.history).get(case.epoch)
    resume = chosen.data.step if chosen else None
    committed = commits(case.history, case.new) if case.new else ()
    detected = reached.get("detected")
    return Failover(
        index=index,
        epoch=case.epoch,
        lost=decided.lost or (),
        failed_ranks=decided.failed or (),
        detector=_name(case),
        fault=case.fault.plan.id if case.fault else None,
        policies=decided.policy or {},
        milestones=points,
        phases=_phases(points),
        ttr_s=_since(start, max((p.t for p in points), default=0.0) if "first step" in reached else None),
        detect_s=_since(start, max(detected, start)) if case.fault and detected is not None else None,
        caught_up_s=_since(start, caught_up(case.history, records, case.epoch)),
        resume_step=resume,
        resume_name=(chosen.data.name or None) if chosen else None,
        newest_step=committed[-1].data.step if committed else None,
        lost_steps=lost_steps(case.history, records, case.epoch, resume),
        slots=decided.slots or (),
    )


def _since(start: float, t: float | None) -> float | None:
    return None if t is None else t - start


def _name(case: _Case) -> str:
    """The detector's name: what the event shows; without one what the decision says."""
    return case.detector.f if case.detector else case.decided.data.detector or ""


def _phases(points: Sequence[Milestone]) -> tuple[tuple[str, float], ...]:
    """Differences of the running maximum. Without a planned fault there is no time to detection."""
    by_name = {point.name: point.t for point in points}
    high = points[0].t if points else 0.0
    found: list[tuple[str, float]] = []
    for name, phase in zip(MILESTONES[1:], PHASES, strict=True):
        if name not in by_name:
            break
        top = max(high, by_name[name])
        found.append((phase, top - high))
        high = top
    return tuple(found)


def _milestones(case: _Case) -> tuple[Milestone, ...]:
    """The points that were reached, up to the first that was not."""
    since = struck(case.fault, case.detector or case.decided, case.times) if case.fault else None
    found = {
        "injected": [since or case.detector or case.decided],
        "detected": [case.detector or case.decided],
        "old epoch gone": _gone(case),
        "nodes ready": _ready(case),
        "store ready": _store(case),
        "joined": _ranks(case, RankJoined),
        "restored": _ranks(case, RankRestored),
        "first step": _ranks(case, RankStep),
    }
    points: list[Milestone] = []
    for name in MILESTONES:
        if not found[name]:
            break
        last = max(found[name], key=case.when)
        points.append(Milestone(name=name, t=case.when(last), seq=last.seq, who=_who(last)))
    return tuple(points)


def _who(event: Event) -> str:
    rank = getattr(event.data, "rank", None)
    return f"rank {rank}" if rank is not None else event.node or ""


def _gone(case: _Case) -> list[Event]:
    """The last answer to a gang.stop of the epochs before, and the exits of the lost nodes; without any, the decision."""
    if case.old is None:
        return [case.decided]
    epochs = range(case.old.epoch, case.epoch)
    stops = [op for op in operations(case.history, GangStop) if epoch_of(op.invoke) in epochs]
    answers = [op.outcome for op in stops if op.outcome is not None and op.outcome.seq < _limit(case)]
    lost = case.decided.data.lost or ()
    exits = [
        event
        for event in case.history.of(NodeExit, NodeSilent)
        if event.node in lost and case.old.began.seq < event.seq < case.decided.seq
    ]
    return [*answers, *exits] or [case.decided]


def _ready(case: _Case) -> list[Event]:
    """The starts of nodes that the new gang needs; where none was needed, the decision: they were ready then."""
    slots = set(case.decided.data.slots or ()) or set(case.new.nodes if case.new else ())
    applied = [
        op
        for op in operations(case.history, NodeApply)
        if op.node in slots and case.decided.seq < op.invoke.seq < _limit(case)
    ]
    if any(op.ok is None for op in applied):
        return []
    return [case.decided, *(op.ok for op in applied if op.ok is not None)]


def _store(case: _Case) -> list[Event]:
    stores = operations(case.history, StoreOpen)
    return [op.ok for op in stores if op.ok is not None and epoch_of(op.invoke) == case.epoch]


def _ranks(case: _Case, kind: type[Payload]) -> list[Event]:
    """The note of every rank of the new epoch; nothing as long as one is missing."""
    if case.new is None or not case.new.complete(kind):
        return []
    return [event for rank, event in case.new.by_rank(kind).items() if rank in case.new.ranks]


def _limit(case: _Case) -> int:
    """The event before which everything of this recovery was asked for."""
    return case.new.began.seq if case.new else _next_decision(case)


def _next_decision(case: _Case) -> int:
    later = (event.seq for event in case.history.of(RecoveryDecided) if event.seq > case.decided.seq)
    return min(later, default=sys.maxsize)
