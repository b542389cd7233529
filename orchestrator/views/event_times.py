"""Checks that the times of a history are possible: each by its writer's clock, and every effect after its cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..model import events
from ..model.event import Event, History
from ..model.events import RankFinished, RankStart, RankStep
from ..model.payload import Payload
from ..model.run import StepRecord
from .command_outcomes import operations
from .event_order import Clocks, clocks
from .findings import Finding, finding
from .gangs import start_name

#: A clock is read to a microsecond; ``t`` is rounded to one.
EXACT = 2e-6
#: By how much wall time and CLOCK_MONOTONIC may disagree between neighbours: adjustment, and a slow pair of system calls.
WALL = 0.01
#: Neighbours on each side with which the wall time of an event is compared.
NEIGHBOURS = 8


def event_times(history: History, records: Sequence[StepRecord] = ()) -> Iterator[Finding]:
    """Times that contradict the clocks of the writers by more than the clocks are uncertain."""
    times = clocks(history)
    yield from _positions(history)
    yield from _controller(history, times)
    yield from _answers(history, times)
    yield from _walls(history, edges=False)
    yield from _steps(history, records)


def uncertain_times(history: History) -> Iterator[Finding]:
    """Wall times of a machine's first and last event: a clock that was set beside such an event looks like a changed event."""
    yield from _walls(history, edges=True)


def _positions(history: History) -> Iterator[Finding]:
    """``t`` is computed from the writer's clock, or is that of the event before."""
    before = 0.0
    for event in history.events:
        start = history.events[0].at
        due = round(event.at.mono - start.mono, 6) if event.at.boot == start.boot else before
        if abs(event.t - due) > EXACT:
            yield finding(f"{event.f} has t {event.t:.6f} s, its writer's clock gives {due:.6f} s", event)
        before = event.t


def _controller(history: History, times: Clocks) -> Iterator[Finding]:
    """The controller writes in the order of its clock, and no event arrives before it happened."""
    before: Event | None = None
    arrived: list[Event] = []
    for event in history.events:
        if event.source.writer != "ctl":
            arrived.append(event)
            continue
        if before is not None and before.at.boot == event.at.boot and event.at.mono < before.at.mono:
            yield finding(f"the controller wrote {event.f} with a time before its {before.f}", before, event)
        for early in arrived:
            if times.at(early) - times.at(event) > times.uncertainty_s(early) + times.uncertainty_s(event) + EXACT:
                text = f"{early.f} arrived before it happened, by the clock of {early.source.writer}"
                yield finding(text, early, event)
        before, arrived = event, []


def _answers(history: History, times: Clocks) -> Iterator[Finding]:
    """An outcome is later than its command, a timer by its whole time; an injection begins before it returns."""
    for operation in operations(history):
        invoke = operation.invoke
        for event in operation.outcomes:
            waited = invoke.data.after_s if invoke.kind is events.Timer and event.type == "ok" else 0.0
            bound = times.uncertainty_s(invoke) + times.uncertainty_s(event) + EXACT
            if times.at(event) - times.at(invoke) < (waited or 0.0) - bound:
                yield finding(f"{event.f} {event.key} ended before its time", invoke, event)
    for event in history.of(events.FaultInjected):
        began = event.data.began
        if began is not None and began > event.at.mono + EXACT:
            yield finding("the injection began after it had returned", event)


def _walls(history: History, *, edges: bool) -> Iterator[Finding]:
    """Wall time follows CLOCK_MONOTONIC: a writer reads it right after that, and before its next event.

    A clock that was set shows in all later events of a machine; a single event that differs was changed.
    ``edges``: only the first and the last event of each machine, which have neighbours on one side; else the others.
    """
    boots: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        boots[event.at.boot].append(event)
    for written in boots.values():
        written.sort(key=lambda event: event.at.mono)
        following = _following(written)
        for index, event in enumerate(written):
            others = written[max(0, index - NEIGHBOURS) : index] + written[index + 1 : index + 1 + NEIGHBOURS]
            is_edge = index in (0, len(written) - 1)
            if others and is_edge is edges and _is_off(event, others, following.get(event.seq)):
                yield finding(f"the wall time of {event.f} does not fit that of its neighbours", event)


def _following(written: Sequence[Event]) -> dict[int, Event]:
    """``seq`` -> the next event of the same writer."""
    following: dict[int, Event] = {}
    last: dict[object, int] = {}
    for event in written:
        writer = event.source.identity[:3]
        if writer in last:
            following[last[writer]] = event
        last[writer] = event.seq
    return following


def _is_off(event: Event, others: Sequence[Event], following: Event | None) -> bool:
    offsets = [other.at.wall - other.at.mono for other in others]
    span = max(abs(other.at.mono - event.at.mono) for other in others)
    bound = WALL + 1e-3 * span
    offset = event.at.wall - event.at.mono
    if offset < min(offsets) - bound:
        return True
    late = offset - max(offsets)
    return late > bound and following is not None and event.at.mono + late > following.at.mono + bound


def _steps(history: History, records: Sequence[StepRecord]) -> Iterator[Finding]:
    """A rank's steps follow each other, between its start and its end; it reports its first step after that is done."""
    ranks: dict[tuple[int, int], list[StepRecord]] = defaultdict(list)
    for record in records:
        ranks[record.epoch, record.rank].append(record)
    starts, firsts, ends = (_by_rank(history, kind) for kind in (RankStart, RankStep, RankFinished))
    for (epoch, rank), steps in ranks.items():
        start, first, end = (notes.get((epoch, rank)) for notes in (starts, firsts, ends))
        begin, finish = start.at.mono if start else -1.0, end.at.mono if end else float("inf")
        for before, record in zip([None, *steps[:-1]], steps, strict=True):
            earliest = before.end if before else begin
            if not earliest - EXACT <= record.start <= record.end <= finish + EXACT:
                yield finding(f"step {record.step} of rank {rank} in {start_name(epoch)} has impossible times", start)
        if first is not None and first.at.mono < steps[0].end - EXACT:
            yield finding(f"rank {rank} reported its first step of {start_name(epoch)} before the step ended", first)


def _by_rank(history: History, kind: type[Payload]) -> dict[tuple[int | None, int], Event]:
    """(attempt, rank) -> its last note of this kind."""
    notes: dict[tuple[int | None, int], Event] = {}
    for event in history.events:
        if event.kind is kind:
            notes[event.epoch, event.data.rank] = event
    return notes
