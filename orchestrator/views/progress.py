"""Steps against time: which were lost, when a new attempt had caught up, how much of the time was productive, or on fewer nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..model import events
from ..model.event import Event, History
from ..model.frozen import dataclass
from ..model.run import StepRecord
from ..model.trial import Trial
from .command_outcomes import operations
from .event_order import clock
from .gangs import Gang, gangs
from .lineage import is_kept, kept_steps, resume_steps

#: What ends an attempt before the run ends.
_ENDS = (events.RecoveryDecided, events.RecoveryGrowing, events.RecoveryGrown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """An attempt on fewer nodes than the trial has: from the first step of its last rank until the next attempt or the end.

    Times in seconds since the run began.
    """

    epoch: int
    nodes: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growing back, which is no recovery: from the order to stop the smaller gang to the first step of every rank.

    ``stop_s``, ``start_s``: until the next attempt was begun, and from then on. None: no such step was done.
    """

    epoch: int
    joined: tuple[str, ...]
    stop_s: float
    start_s: float | None


def lost_steps(
    history: History,
    records: Sequence[StepRecord],
    epoch: int,
    resume: int | None,
    resumes: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """Steps beyond ``resume`` that counted until attempt ``epoch`` began, and that were executed again.

    Without records: the steps that have to be executed again according to gang.stop.
    """
    if resume is None:
        return ()
    if not records:
        last = max(_last_steps(history, epoch), default=resume)
        return tuple(range(resume + 1, last + 1))
    known = resume_steps(history) if resumes is None else resumes
    resumes = {earlier: step for earlier, step in known.items() if earlier < epoch}
    old = {r.step for r in records if r.epoch < epoch and r.step > resume and is_kept(r.epoch, r.step, resumes)}
    return tuple(sorted(old & {r.step for r in records if r.epoch >= epoch}))


def caught_up(history: History, records: Sequence[StepRecord], epoch: int) -> float | None:
    """Return when every rank had completed the first step beyond the last before ``epoch``, in seconds since the run began."""
    last = max((record.step for record in records if record.epoch < epoch), default=None)
    gang = next((gang for gang in gangs(history) if gang.epoch == epoch), None)
    if last is None or gang is None:
        return None
    target = min(last + 1, max(record.step for record in records))
    end_of = _step_ends(history)
    ends = {r.rank: end_of(r) for r in records if r.epoch == epoch and r.step == target}
    return max(ends.values()) if ends and set(gang.ranks) <= set(ends) else None


def goodput(history: History, records: Iterable[StepRecord], resumes: Mapping[int, int] | None = None) -> float | None:
    """Time on executions of steps that were never redone / elapsed, as a mean over ranks, 0..1.

    Elapsed is from run.begin to the last rank.finished, or to the last event without one. The definition is that of
    Google's goodput library with everything but productive steps in the denominator. None: no step has a duration, as
    where a script reports steps when they end.
    """
    chosen = kept_steps(records, history, resumes)
    ranks = {record.rank for record in chosen}
    elapsed = finished_at(history)
    if not ranks or elapsed <= 0:
        return None
    productive = sum(max(0.0, record.end - record.start) for record in chosen)
    return min(1.0, productive / len(ranks) / elapsed) if productive > 0 else None


def finished_at(history: History) -> float:
    """Seconds from the beginning to the last rank.finished, else to the last event."""
    when = clock(history)
    ends = map(when, history.of(events.RankFinished))
    return max(ends, default=when(history.events[-1]) if history.events else 0.0)


def reduced(trial: Trial, history: History) -> tuple[Reduced, ...]:
    """The attempts on fewer nodes that completed a step on every rank, in order."""
    when, known = clock(history), gangs(history)
    spans = []
    for gang in known:
        begin = _first_step(history, gang)
        if begin is None or len(gang.slots) >= trial.world.nodes:
            continue
        later = [event for event in history.of(*_ENDS) if event.seq > gang.began.seq]
        end = when(later[0]) if later else finished_at(history)
        spans.append(Reduced(epoch=gang.epoch, nodes=len(gang.slots), begin=begin, end=max(begin, end)))
    return tuple(spans)


def growths(history: History) -> tuple[Growth, ...]:
    """Each time that nodes rejoined, in order."""
    when, by_epoch = clock(history), {gang.epoch: gang for gang in gangs(history)}
    ordered = {event.epoch: event for event in history.of(events.RecoveryGrowing)}
    result = []
    for grown in history.of(events.RecoveryGrown):
        epoch = grown.epoch or 0
        stop, gang = ordered.get(epoch - 1, grown), by_epoch.get(epoch)
        first = _first_step(history, gang) if gang else None
        start_s = None if first is None else first - when(grown)
        joined = grown.data.joined or ()
        result.append(Growth(epoch=epoch, joined=joined, stop_s=when(grown) - when(stop), start_s=start_s))
    return tuple(result)


def _last_steps(history: History, epoch: int) -> list[int]:
    """The last steps of the ranks of the attempt before, as gang.stop reported them."""
    last = [-1]
    for operation in operations(history, events.GangStop):
        if operation.ok is not None and operation.epoch == epoch - 1:
            last += [step for step in (operation.ok.data.last_step or {}).values() if step is not None]
    return last


def _step_ends(history: History) -> Callable[[StepRecord], float]:
    """The end of a step in seconds since the run began, by an event of the same rank, which shows both clocks."""
    when = clock(history)
    offsets: dict[tuple[int, int], float] = {}
    for gang in gangs(history):
        for kind in (events.RankStart, events.RankJoined, events.RankStep):
            for rank, event in gang.by_rank(kind).items():
                offset = when(event) - event.at.mono
                offsets[gang.epoch, rank] = min(offset, offsets.get((gang.epoch, rank), offset))
    return lambda record: record.end + offsets.get((record.epoch, record.rank), 0.0)


def _first_step(history: History, gang: Gang) -> float | None:
    """Return when the last rank had done its first step."""
    when = clock(history)
    if not gang.is_complete(events.RankStep):
        return None
    return max(when(event) for event in gang.by_rank(events.RankStep).values())


def omitted_steps(history: History) -> frozenset[int]:
    """Steps that the last measurement of collectives left out because its median was known well enough, or its time was over.

    A stop counts only if the plan has a precision, and the interval that the stop reports is as narrow as that, or the stop and the
    time since the plan are as late as the plan allows.
    """
    plans, resumes = {plan.epoch: plan for plan in history.of(events.CollectivePlan)}, resume_steps(history)
    omitted: set[int] = set()
    for event in history.of(events.CollectiveMeasured):
        plan, stop = plans.get(event.epoch), event.data
        share = plan.data.precision if plan else None
        if plan is None or not share:
            continue
        case = next((case for case in plan.data.cases or () if case.case == stop.case), None)
        if case is None or case.first_step is None or not is_kept(event.epoch or 0, case.first_step, resumes):
            continue
        is_precise = stop.reason == "precision" and relative_width(stop) < share
        if not is_precise and not _is_late(event, plan):
            continue
        stride = case.stride or 1
        after = case.first_step + (stop.iterations or 0) * stride
        omitted |= set(range(after, case.first_step + (case.iterations or 0) * stride, stride))
    return frozenset(omitted)


def relative_width(measured: events.CollectiveMeasured) -> float:
    """The interval of a case as a share of its median; infinite where one is not known."""
    if not measured.median_s or measured.low_s is None or measured.high_s is None:
        return math.inf
    return (measured.high_s - measured.low_s) / measured.median_s


def _is_late(event: Event[events.CollectiveMeasured], plan: Event[events.CollectivePlan]) -> bool:
    limit, seconds = plan.data.precision_s, event.data.seconds
    return (
        event.data.reason == "time"
        and limit is not None
        and seconds is not None
        and limit <= seconds <= event.t - plan.t
    )
