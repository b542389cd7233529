"""Recorded collectives of a trace, and the names of operations and types in traces; their schedule by dependencies.

A collective starts when what it depends on has ended. Durations of nodes that compute are the trace's; those of collectives are the
replay's. So each collective has, for the collectives that it depends on, the longest computing in between.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Mapping, Sequence

from ...model.frozen import dataclass
from .model_description import DTYPES

#: Letters of a name in lower case -> ccbed's name; "": no transfer.
_OPERATIONS: Mapping[str, str] = {
    "allreduce": "all-reduce", "allreducecoalesced": "all-reduce",
    "allgather": "all-gather", "allgatherbase": "all-gather", "allgatherintotensor": "all-gather",
    "allgatherintotensorcoalesced": "all-gather", "allgatherv": "all-gather",
    "reducescatter": "reduce-scatter", "reducescatterbase": "reduce-scatter", "reducescattertensor": "reduce-scatter",
    "reducescattertensorcoalesced": "reduce-scatter", "reducescatterv": "reduce-scatter", "reducescatterblock": "reduce-scatter",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "alltoall": "all-to-all", "alltoallv": "all-to-all", "alltoallbase": "all-to-all", "alltoallsingle": "all-to-all",
    "send": "send", "isend": "send", "recv": "recv", "irecv": "recv", "recvanysource": "recv",
    "barrier": "barrier",
    "wait": "", "init": "", "batchisendirecv": "", "coalesced": "", "startcoalescing": "", "endcoalescing": "",
}  # fmt: skip
_DTYPES: Mapping[str, str] = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "c10::bfloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "short": "int16", "char": "int8", "byte": "uint8",
    "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip
#: In place of an event: the start of the recording.
ORIGIN = -1
#: The maximum number of ranks of a cluster.
MAX_RANKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A collective of a rank. ``size`` is S; ``group``: its ranks, empty: all; ``peer``: of a send or recv.

    ``start``, ``end``: seconds, None if the trace has no such time. ``where``: file and entry, for errors.
    ``after``: (place of an event in the recording, or ORIGIN; seconds of computing since its end), if the trace has dependencies.
    """

    operation: str
    size: int
    dtype: str
    where: str
    group: tuple[int, ...] = ()
    peer: tuple[int, int] | None = None
    start: float | None = None
    end: float | None = None
    after: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A trace file. ``rank``: None if the trace represents all ranks; ``world``: the number of ranks, if the file has it."""

    file: str
    rank: int | None
    events: tuple[Event, ...]
    world: int | None = None


class TraceError(ValueError):
    """A trace cannot be read or replayed: a line per problem."""


def operation(name: str) -> str | None:
    """ccbed's name of an operation; empty for an operation without a transfer; None if unknown."""
    return _OPERATIONS.get("".join(letter for letter in name.lower() if letter.isalpha()))


def known_operations() -> str:
    return ", ".join(sorted({name for name in _OPERATIONS.values() if name}))


def dtype(name: str) -> str | None:
    """ccbed's name of an element type; None if unknown."""
    low = name.lower()
    return low if low in DTYPES else _DTYPES.get(low)


def all_ranks(ranks: int) -> tuple[int, ...]:
    """The ranks 0 to ``ranks`` - 1. Raises TraceError for more than a cluster has."""
    if not 0 <= ranks <= MAX_RANKS:
        raise TraceError(f"{ranks:,} ranks: must be 0 to {MAX_RANKS:,}")
    return tuple(range(ranks))


def total_size(operation: str, input_size: int, output_size: int, ranks: int) -> int:
    """S from a rank's input and output (both in the same unit) in a group of ``ranks``."""
    if operation == "all-gather":
        return output_size if output_size > input_size else input_size * ranks
    if operation == "reduce-scatter":
        return input_size if input_size > output_size else output_size * ranks
    if operation == "gather":
        return max(input_size * ranks, output_size)
    if operation == "scatter":
        return max(output_size * ranks, input_size)
    return max(input_size, output_size)


#: Delays in traces are whole microseconds.
RESOLUTION_S = 1e-7
#: Place of a collective -> seconds of computing since its end.
Delays = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A node: it ``needs`` others to have ended, and takes ``seconds``."""

    id: str
    needs: tuple[str, ...]
    seconds: float


def schedule(tasks: Sequence[Task], events: Mapping[int, Event], file: str) -> tuple[Event, ...] | None:
    """``events``, by the position of their task, in the order of their starts, with what each one comes ``after``.

    None for a trace without computing, or without dependencies of collectives: its times count. So they do if a dependency is
    not in the trace. Raises TraceError.
    """
    is_computing = any(task.seconds > 0 for position, task in enumerate(tasks) if position not in events)
    if not is_computing or not any(tasks[position].needs for position in events):
        return None
    lacking = _lacking(tasks)
    if lacking and any(event.start is not None for event in events.values()):
        return None
    if lacking:
        raise TraceError(f"{file}: node {lacking[0]}: depends on node {lacking[1]}, which the trace lacks")
    order = _order(tasks, file)
    starts = _starts(tasks, order)
    rank_in_order = {position: place for place, position in enumerate(order)}
    by_start = sorted(events, key=lambda position: (starts[position], rank_in_order[position]))
    places = {position: place for place, position in enumerate(by_start)}
    after = _delays(tasks, order, places)
    return tuple(dataclasses.replace(events[position], after=tuple(after[position].items())) for position in by_start)


def _lacking(tasks: Sequence[Task]) -> tuple[str, str] | None:
    """A task, and one that it needs and that is not there."""
    known = {task.id for task in tasks}
    return next(((task.id, id) for task in tasks for id in task.needs if id not in known), None)


def _order(tasks: Sequence[Task], file: str) -> list[int]:
    """Positions, each behind those that it needs."""
    position_of = {task.id: position for position, task in enumerate(tasks)}
    graph = {position: [position_of[id] for id in task.needs] for position, task in enumerate(tasks)}
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        names = " -> ".join(tasks[position].id for position in error.args[1])
        raise TraceError(f"{file}: nodes depend on each other in a circle: {names}") from None


def _starts(tasks: Sequence[Task], order: Sequence[int]) -> dict[int, float]:
    """Position -> seconds of its start, with the trace's durations: they decide only which collective comes first."""
    position_of = {task.id: position for position, task in enumerate(tasks)}
    starts: dict[int, float] = {}
    for position in order:
        needed = [position_of[id] for id in tasks[position].needs]
        starts[position] = max((starts[before] + tasks[before].seconds for before in needed), default=0.0)
    return starts


def _delays(tasks: Sequence[Task], order: Sequence[int], places: Mapping[int, int]) -> dict[int, Delays]:
    """Position of a collective -> the computing since the collectives that it depends on."""
    position_of = {task.id: position for position, task in enumerate(tasks)}
    ends: dict[int, Delays] = {}
    result: dict[int, Delays] = {}
    of_place: dict[int, Delays] = {}
    for position in order:
        task = tasks[position]
        reached = _longest([ends[position_of[id]] for id in task.needs], of_place)
        if position in places:
            result[position] = of_place[places[position]] = reached
            ends[position] = {places[position]: 0.0}
        else:
            ends[position] = {place: delay + task.seconds for place, delay in reached.items()}
    return result


def _longest(branches: Sequence[Delays], of_place: Mapping[int, Delays]) -> Delays:
    """The delays that can determine the start. A delay cannot if a later collective has one that is at least as long.

    A rank runs one collective at a time, so the later one ends later. Nor can it if the later one already waits for it.
    """
    longest: dict[int, float] = {}
    for branch in branches or ({ORIGIN: 0.0},):
        for place, delay in branch.items():
            longest[place] = max(delay, longest.get(place, 0.0))
    kept: dict[int, float] = {}
    for place in sorted(longest, reverse=True):
        covered = (of_place[later].get(place, 0.0) + delay for later, delay in kept.items())
        if longest[place] > max(covered, default=-1.0) + RESOLUTION_S:
            kept[place] = longest[place]
    return kept
