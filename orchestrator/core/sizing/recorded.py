"""What a trace has recorded of one collective, and the names that traces give to operations and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .described import DTYPES

#: Letters of a name in lower case -> our name; "": no transfer of its own.
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
#: Ranks of the largest cluster that makes sense.
MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One collective of one rank. ``size`` is S; ``group``: its ranks, empty: all; ``peer``: of a send or recv.

    ``start``, ``end``: seconds, None where the trace has no such time. ``where``: file and entry, for errors.
    """

    operation: str
    size: int
    dtype: str
    where: str
    group: tuple[int, ...] = ()
    peer: tuple[int, int] | None = None
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file. ``rank``: whose, None: one trace that stands for all; ``world``: ranks as far as the file says."""

    file: str
    rank: int | None
    events: tuple[Event, ...]
    world: int | None = None


class TraceError(ValueError):
    """A trace that cannot be read or replayed: a line per problem."""


def operation(name: str) -> str | None:
    """Our name of an operation; empty for what moves nothing; None for an unknown one."""
    return _OPERATIONS.get("".join(letter for letter in name.lower() if letter.isalpha()))


def known() -> str:
    return ", ".join(sorted({name for name in _OPERATIONS.values() if name}))


def dtype(name: str) -> str | None:
    """Our name of a type of elements; None for an unknown one."""
    low = name.lower()
    return low if low in DTYPES else _DTYPES.get(low)


def everyone(ranks: int) -> tuple[int, ...]:
    """All ranks of so many. Raises TraceError for more than a cluster has."""
    if not 0 <= ranks <= MOST:
        raise TraceError(f"{ranks:,} ranks: must be 0 to {MOST:,}")
    return tuple(range(ranks))


def size(operation: str, given: int, taken: int, ranks: int) -> int:
    """S from what one rank gives and takes (both in the same unit) in a group of ``ranks``."""
    if operation == "all-gather":
        return taken if taken > given else given * ranks
    if operation == "reduce-scatter":
        return given if given > taken else taken * ranks
    if operation == "gather":
        return max(given * ranks, taken)
    if operation == "scatter":
        return max(taken * ranks, given)
    return max(given, taken)
