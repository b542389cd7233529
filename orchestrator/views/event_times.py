"""Whether the times of a history can be true: each by its writer's clock, in the order in which things follow from each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..model.event import Event, History
from ..model.events import FaultInjected, RankFinished, RankStart, RankStep, Timer
from ..model.run import StepRecord
from .clock import Clocks, clocks
from .command_outcomes import operations
from .findings import Finding, found

#: A clock is read to a microsecond; ``t`` is rounded to one.
EXACT = 2e-6
#: By how much wall time and CLOCK_MONOTONIC may disagree between neighbours: adjustment, and a slow pair of system calls.
WALL = 0.01
#: Neighbours on each side with which the wall time of an event is compared.
NEIGHBOURS = 8


def event_times(history: History, records: Sequence[StepRecord] = ()) -> Iterator[Finding]:
    """What contradicts the clocks of the writers, by more than these can be wrong."""
    times = clocks(history)
    yield from _placed(history)
    yield from _controller(history, times)
    yield from _answers(history, times)
    yield from _walls(history, edges=False)
    yield from _steps(history, records)


def uncertain_times(history: History) -> Iterator[Finding]:
    """The wall time of a machine's first or last event: a clock that was set right beside it looks like a changed event."""
    yield from _walls(history, edges=True)


def _placed(history: History) -> Iterator[Finding]:
    """``t`` is computed from the writer's clock, or is that of the event before."""
    before = 0.0
    for event in history.events:
        start = history.events[0].at
        due = round(event.at.mono - start.mono, 6) if event.at.boot == start.boot else before
        if abs(event.t - due) > EXACT:
            yield found(f"{event.f} stands at {event.t:.6f} s, its writer's clock gives {due:.6f} s", event)
        before = event.t


def _controller(history: History, times: Clocks) -> Iterator[Finding]:
    """The controller writes in the order of its clock, and nothing arrives before it happened."""
    before: Event | None = None
    arrived: list[Event] = []
    for event in history.events:
        if event.source.writer != "ctl":
            arrived.append(event)
            continue
        if before is not None and before.at.boot == event.at.boot and event.at.mono < before.at.mono:
            yield found(f"the controller wrote {event.f} with a time before its {before.f}", before, event)
        for early in arrived:
            if times.at(early) - times.at(event) > times.doubt(early) + times.doubt(event) + EXACT:
                yield found(
                    f"{early.f} arrived before it happened, by the clock of {early.source.writer}", early, event
                )
        before, arrived = event, []


def _answers(history: History, times: Clocks) -> Iterator[Finding]:
    """An answer is later than its command, a timer by its whole time; an injection begins after it was asked for."""
    for operation in operations(history):
        asked = operation.invoke
        for event in operation.outcomes:
            waited = asked.data.after_s if isinstance(asked.data, Timer) and event.type == "ok" else 0.0
            bound = times.doubt(asked) + times.doubt(event) + EXACT
            if times.at(event) - times.at(asked) < (waited or 0.0) - bound:
                yield found(f"{event.f} {event.key} was answered before its time", asked, event)
    for event in history.of(FaultInjected):
        began = event.data.began
        if began is not None and began > event.at.mono + EXACT:
            yield found("the injection began after it had returned", event)


def _walls(history: History, *, edges: bool) -> Iterator[Finding]:
    """Wall time follows CLOCK_MONOTONIC: it is read right after it, and before the same writer's next event.

    A clock that was set shows in all later events of a machine; an event that differs alone was changed.
    ``edges``: only the first and the last event of each machine, which have neighbours on one side alone; else the others.
    """
    boots: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        boots[event.at.boot].append(event)
    for events in boots.values():
        events.sort(key=lambda event: event.at.mono)
        following = _following(events)
        for place, event in enumerate(events):
            others = events[max(0, place - NEIGHBOURS) : place] + events[place + 1 : place + 1 + NEIGHBOURS]
            is_edge = place in (0, len(events) - 1)
            if others and is_edge is edges and _off(event, others, following.get(event.seq)):
                yield found(f"the wall time of {event.f} does not fit that of the events around it", event)


def _following(events: Sequence[Event]) -> dict[int, Event]:
    """``seq`` -> the next event of the same writer."""
    following: dict[int, Event] = {}
    last: dict[object, int] = {}
    for event in events:
        writer = event.source.identity[:3]
        if writer in last:
            following[last[writer]] = event
        last[writer] = event.seq
    return following


def _off(event: Event, others: Sequence[Event], following: Event | None) -> bool:
    offsets = [other.at.wall - other.at.mono for other in others]
    span = max(abs(other.at.mono - event.at.mono) for other in others)
    bound = WALL + 1e-3 * span
    offset = event.at.wall - event.at.mono
    if offset < min(offsets) - bound:
        return True
    late = offset - max(offsets)
    return late > bound and following is not None and event.at.mono + late > following.at.mono + bound


def _steps(history: History, records: Sequence[StepRecord]) -> Iterator[Finding]:
    """A rank's steps follow each other, after it joined and before it ended; its first is noted when it is done."""
    ranks: dict[tuple[int, int], list[StepRecord]] = defaultdict(list)
    for record in records:
        ranks[record.epoch, record.rank].append(record)
    notes = {(event.epoch, event.data.rank, event.f): event for event in history.of(RankStart, RankStep, RankFinished)}
    for (epoch, rank), steps in ranks.items():
        start, first, end = (notes.get((epoch, rank, kind.NAME)) for kind in (RankStart, RankStep, RankFinished))
        begin, finish = start.at.mono if start else -1.0, end.at.mono if end else float("inf")
        for before, record in zip([None, *steps[:-1]], steps, strict=True):
            earliest = before.end if before else begin
            if not earliest - EXACT <= record.start <= record.end <= finish + EXACT:
                yield found(f"step {record.step} of rank {rank} in epoch {epoch} has times that cannot be", start)
        if first is not None and first.at.mono < steps[0].end - EXACT:
            yield found(f"rank {rank} noted its first step of epoch {epoch} before the step ended", first)
