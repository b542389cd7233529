"""Steps against time: which were lost, when a new attempt had caught up, and how much of the time was productive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..model import events
from ..model.event import History
from ..model.run import StepRecord
from .clock import clock
from .command_outcomes import operations
from .gangs import gangs
from .lineage import is_kept, kept_steps, resume_steps


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
    """When every rank had completed the first step beyond the last before ``epoch``, in seconds since the run began."""
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
