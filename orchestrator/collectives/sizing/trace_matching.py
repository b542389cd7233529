"""Match the collectives of several ranks' traces: their members, which ran at the same time, which ranks are missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .layout import Groups
from .replay_items import Item
from .trace_recording import ORIGIN, Event, Recording, TraceError

#: (operation, ranks) -> the algorithm that replays it.
Algorithms = Callable[[str, int], str]


_SINGLE_TRACE = "one trace: all ranks are assumed to do the same"
#: Operations whose ranks may have different sizes.
_UNEVEN = ("all-to-all", "gather", "scatter")


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Seconds of computing since the end of the collective before, or since its start where the trace has no ends."""

    seconds: float = 0.0
    origin: str = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Collectives of one kind that run at the same time in ``groups`` (empty group: all ranks).

    ``gap``: seconds since the end (or the start) of the collective before; or ``after``: (steps back, seconds since its end).
    """

    operation: str
    size: int
    dtype: str
    groups: Groups
    gap: Gap
    after: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    ranks: int
    steps: tuple[Step, ...]
    timed: bool
    notes: tuple[str, ...]


def replay_item(step: Step, ranks: int, algorithms: Algorithms) -> Item:
    """The step as an item with a single iteration."""
    all_ranks = tuple(range(ranks))
    groups = () if step.groups in ((), ((),), (all_ranks,)) else step.groups
    members = len(groups[0]) if groups else ranks
    return Item(
        operation=step.operation, bytes=step.size, trials=1, dtype=step.dtype, groups=groups,
        gaps_ms=(step.gap.seconds * 1e3,) if step.gap.seconds else (), gap_from=step.gap.origin,
        after=tuple((back, seconds * 1e3) for back, seconds in step.after), algorithm=algorithms(step.operation, members),
    )  # fmt: skip


def match_single_trace(recording: Recording, gpus: int | None) -> Matched:
    """A single trace: all ranks do the same; the trace must contain all sends and receives."""
    ranks = max(recording.world or 0, gpus or 0)
    if ranks < 2:
        raise TraceError(f"{recording.file}: the number of ranks is not in the trace; give --gpus N")
    events = [event for event in recording.events if event.operation != "recv"]
    placed = _Placed([recording.events], _pair(recording.events))
    gaps = _gaps(recording.events)
    steps = tuple(
        Step(operation=_name(event), size=_size(event, ranks), dtype=event.dtype, groups=(_members(event, ranks),),
             gap=gaps[id(event)], after=placed.place([event]))
        for event in events
    )  # fmt: skip
    return Matched(
        ranks=ranks, steps=steps, timed=_timed(recording.events), notes=(_SINGLE_TRACE, *_notes(recording.events))
    )


def match_traces(recordings: Sequence[Recording], gpus: int | None) -> Matched:
    """A trace per rank. Raises TraceError if the collectives of the ranks do not match."""
    ranks = max(gpus or 0, len(recordings))
    events = tuple(event for recording in recordings for event in recording.events)
    placed = _Placed([recording.events for recording in recordings], _pair(events))
    steps = tuple(
        _meet(
            {recording.rank: recording.events for recording in recordings if recording.rank is not None}, ranks, placed
        )
    )
    return Matched(ranks=ranks, steps=steps, timed=_timed(events), notes=_notes(events))


class _Placed:
    """The steps that events have become, so that dependencies on events become dependencies on steps."""

    def __init__(self, recordings: Iterable[Sequence[Event]], senders: Mapping[int, Event]) -> None:
        self._senders = senders
        self._events = {id(event): events for events in recordings for event in events}
        self._steps: dict[int, int] = {}
        self._count = 0

    def place(self, events: Sequence[Event]) -> tuple[tuple[int, float], ...]:
        """Make the next step of ``events``; return the steps that it comes after: (steps back, or 0: the start; seconds)."""
        after: dict[int, float] = {}
        for event in events:
            for place, seconds in event.after:
                back = self._back(event, place)
                after[back] = max(seconds, after.get(back, 0.0))
        self._steps |= {id(event): self._count for event in events}
        self._count += 1
        return tuple(sorted(after.items()))

    def _back(self, event: Event, place: int) -> int:
        if place == ORIGIN:
            return 0
        needed = self._events[id(event)][place]
        step = self._steps.get(id(self._senders.get(id(needed), needed)))
        if step is None:
            raise TraceError(f"{event.where}: depends on {needed.where}, which other ranks run later")
        return self._count - step


def _pair(events: Sequence[Event]) -> dict[int, Event]:
    """Check that every send has its receive in order, and every receive its send. Return the send of each receive, by its id."""
    ends: dict[str, dict[tuple[int, int], list[Event]]] = {"send": defaultdict(list), "recv": defaultdict(list)}
    for event in events:
        if event.peer:
            ends[event.operation][event.peer].append(event)
    problems = []
    for pair in sorted({*ends["send"], *ends["recv"]}):
        sent, received = ends["send"][pair], ends["recv"][pair]
        for send, receive in zip(sent, received, strict=False):
            if send.size != receive.size:
                problems.append(
                    f"{send.where}: {send.size:,} bytes to rank {pair[1]}, which receives {receive.size:,}: {receive.where}"
                )
        problems += [
            f"{event.where}: rank {pair[0]} sends to rank {pair[1]}, which has no recv for it"
            for event in sent[len(received) :]
        ]
        problems += [
            f"{event.where}: rank {pair[1]} receives from rank {pair[0]}, which has no send for it"
            for event in received[len(sent) :]
        ]
    if problems:
        raise TraceError("\n".join(problems[:20]))
    return {
        id(receive): send
        for pair, sent in ends["send"].items()
        for send, receive in zip(sent, ends["recv"][pair], strict=True)
    }


def _meet(queues: dict[int, tuple[Event, ...]], ranks: int, placed: _Placed) -> Iterator[Step]:
    """Yield, in rounds, the collectives that all members have reached; equal collectives of a round run at the same time."""
    at = dict.fromkeys(queues, 0)
    gaps = {key: gap for events in queues.values() for key, gap in _gaps(events).items()}
    while _left(queues, at):
        ready = _ready(queues, at, ranks)
        if not ready and _left(queues, at):
            raise TraceError("\n".join(_stuck(queues, at, ranks)))
        kinds: dict[tuple[str, int, str], dict[tuple[int, ...], list[Event]]] = {}
        for group, events in ready:
            event = _same(events, ranks)
            kinds.setdefault((_name(event), _size(event, ranks), event.dtype), {})[group] = events
        for (name, size, dtype), groups in kinds.items():
            for part in _disjoint(groups):
                events = [event for group in part for event in groups[group]]
                gap, after = max(gaps[id(event)] for event in events), placed.place(events)
                yield Step(operation=name, size=size, dtype=dtype, groups=part, gap=gap, after=after)


def _ready(
    queues: dict[int, tuple[Event, ...]], at: dict[int, int], ranks: int
) -> list[tuple[tuple[int, ...], list[Event]]]:
    """The collectives that can run now, removed from their queues. A send does not wait; its receive is then ready."""
    heads = {rank: queues[rank][at[rank]] for rank in at if at[rank] < len(queues[rank])}
    result: list[tuple[tuple[int, ...], list[Event]]] = []
    taken: set[int] = set()
    for rank, event in sorted(heads.items()):
        if rank in taken:
            continue
        group = _group(event, ranks)
        members = (rank,) if event.peer else group
        meets = [heads.get(member) for member in members]
        if any(head is None or (_name(head), _group(head, ranks)) != (_name(event), group) for head in meets):
            continue
        taken |= set(members)
        if event.operation != "recv":
            # Two that send to each other are one exchange.
            result.append((_members(event, ranks), [head for head in meets if head is not None]))
        for member in members:
            at[member] += 1
    # A round of receives alone moves on without a step of its own.
    return result or (_ready(queues, at, ranks) if taken and _left(queues, at) else [])


def _disjoint(groups: Iterable[tuple[int, ...]]) -> list[Groups]:
    """The groups in parts without a common rank, assigned greedily."""
    parts: list[list[tuple[int, ...]]] = []
    for group in sorted(groups):
        free = (part for part in parts if not any(set(group) & set(other) for other in part))
        place = next(free, None)
        if place is None:
            parts.append([group])
        else:
            place.append(group)
    return [tuple(part) for part in parts]


def _same(events: Sequence[Event], ranks: int) -> Event:
    """The event with the most bytes. Raises TraceError if the sizes must be equal and are not."""
    most = max(events, key=lambda event: _size(event, ranks))
    least = min(events, key=lambda event: _size(event, ranks))
    if most.operation not in _UNEVEN and _size(most, ranks) != _size(least, ranks):
        raise TraceError(f"{most.where}: {_size(most, ranks):,} bytes, but {_size(least, ranks):,} in {least.where}")
    return most


def _left(queues: dict[int, tuple[Event, ...]], at: dict[int, int]) -> bool:
    return any(at[rank] < len(queues[rank]) for rank in at)


def _stuck(queues: dict[int, tuple[Event, ...]], at: dict[int, int], ranks: int) -> Iterator[str]:
    """Yield for every waiting rank the ranks that are missing from its collective."""
    heads = {rank: queues[rank][at[rank]] if at[rank] < len(queues[rank]) else None for rank in at}
    for rank, event in sorted(heads.items()):
        if event is None:
            continue
        group = _group(event, ranks)
        for other in group:
            head = heads.get(other)
            if head is None:
                yield f"{event.where}: rank {rank} is in {event.operation}, which rank {other} lacks: its trace has ended"
            elif (_name(head), _group(head, ranks)) != (_name(event), group):
                yield f"{event.where}: rank {rank} is in {event.operation}, which rank {other} lacks: it is at {head.where}"


def _gaps(events: Sequence[Event]) -> dict[int, Gap]:
    """The gap before each event: since the end of the previous event, or since its start if no end is known."""
    gaps: dict[int, Gap] = {}
    before: Event | None = None
    for event in events:
        origin = "start" if (before or event).start is not None and (before or event).end is None else "end"
        since = None if before is None else before.start if origin == "start" else before.end
        known = event.start is not None and since is not None
        gaps[id(event)] = Gap(max(0.0, (event.start or 0.0) - (since or 0.0)) if known else 0.0, origin)
        before = event if event.start is not None else before
    return gaps


def _name(event: Event) -> str:
    return "send-recv" if event.peer else event.operation


def _group(event: Event, ranks: int) -> tuple[int, ...]:
    return event.peer or event.group or tuple(range(ranks))


def _members(event: Event, ranks: int) -> tuple[int, ...]:
    return tuple(sorted(event.peer)) if event.peer else _group(event, ranks)


def _size(event: Event, ranks: int) -> int:
    """S; a negative size is a rank's part in a group of all ranks."""
    return event.size if event.size >= 0 else -event.size * ranks


def _timed(events: Sequence[Event]) -> bool:
    return any(event.start is not None or event.after for event in events)


def _notes(events: Sequence[Event]) -> tuple[str, ...]:
    notes = []
    if not _timed(events):
        notes.append("the trace has no times: gap_ms is 0 everywhere")
    elif any(event.after for event in events):
        notes.append(
            "the trace has dependencies: each collective starts after those that it needs and the computing in between"
        )
    elif all(event.end is None for event in events):
        notes.append("the trace has starts alone: gap_ms is from one start to the next (gap_from: start)")
    elif any(event.end is None for event in events):
        notes.append("some collectives of the trace have no end: the gap after such a collective counts from its start")
    if any(event.peer for event in events):
        notes.append("send-recv: both ranks of a pair send, also where the trace's message went one way alone")
    if any(event.operation == "all-to-all" for event in events):
        notes.append("all-to-all: equal parts for every peer; uneven splits of the trace are not replayed")
    return tuple(notes)
