"""Recorded collectives of a trace, and the names of operations and types in traces."""

from __future__ import annotations

from collections.abc import Mapping

from ....model.frozen import dataclass
from ..model_description import DTYPES

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
