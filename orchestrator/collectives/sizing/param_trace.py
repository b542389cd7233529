"""PARAM's comms trace in JSON: a list of entries, one per collective, whose sizes are numbers of elements.

The format is that of PARAM's replay tool (its trace type "basic"): ``comms``, ``in_msg_size``, ``out_msg_size``, ``dtype``,
``startTime_ns``, ``pg_id``, ``global_ranks``, ``world_size``, ``src_rank``, ``dst_rank``; entries ``init`` name the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import trace_recording
from .model_description import DTYPES
from .trace_recording import Event, Recording, TraceError


def is_param_trace(document: Any) -> bool:
    """Return whether a JSON document is in this form."""
    return isinstance(document, list) and any(
        isinstance(entry, dict) and ("comms" in entry or "compute" in entry) for entry in document
    )


def read(document: Sequence[Any], file: str, rank: int | None) -> Recording:
    """Raises TraceError with a line per wrong entry."""
    groups: dict[Any, tuple[int, ...]] = {}
    events: list[Event] = []
    problems: list[str] = []
    for number, entry in enumerate(document, 1):
        where = f"{file}: entry {number}"
        try:
            if not isinstance(entry, dict) or not ("comms" in entry or "compute" in entry):
                raise TraceError("has neither comms nor compute")
            if entry.get("global_ranks"):
                groups[entry.get("pg_id")] = tuple(int(rank_) for rank_ in entry["global_ranks"])
            if "comms" in entry:
                events += _event(entry, where, groups)
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise TraceError("\n".join(problems))
    sizes = [int(entry["world_size"]) for entry in document if entry.get("world_size")]
    ranks = [rank + 1 for event in events for rank in (*event.group, *(event.peer or ()))]
    return Recording(file=file, rank=rank, events=tuple(events), world=max([*sizes, *ranks], default=None))


def _event(entry: Mapping[str, Any], where: str, groups: Mapping[Any, tuple[int, ...]]) -> tuple[Event, ...]:
    name = str(entry["comms"])
    operation = trace_recording.operation(name)
    if operation is None:
        raise TraceError(f"unknown operation {name}; known: {trace_recording.known_operations()}")
    if not operation:
        return ()
    group = groups.get(entry.get("pg_id"), ()) or trace_recording.all_ranks(int(entry.get("world_size") or 0))
    given, taken, dtype = (0, 0, "float32") if operation == "barrier" else _sizes(entry, name)
    start = entry.get("startTime_ns")
    return (
        Event(
            operation=operation,
            size=trace_recording.total_size(operation, given, taken, len(group) or 1) * DTYPES[dtype],
            dtype=dtype,
            where=f"{where} ({name})",
            group=() if operation in ("send", "recv") else group,
            peer=_peer(entry, name) if operation in ("send", "recv") else None,
            start=None if start is None else int(start) / 1e9,
        ),
    )


def _sizes(entry: Mapping[str, Any], name: str) -> tuple[int, int, str]:
    lacking = [key for key in ("in_msg_size", "out_msg_size", "dtype") if entry.get(key) is None]
    if lacking:
        raise TraceError(f"{name} lacks {', '.join(lacking)}")
    dtype = trace_recording.dtype(str(entry["dtype"]))
    if dtype is None:
        raise TraceError(f"unknown dtype {entry['dtype']}")
    given, taken = int(entry["in_msg_size"]), int(entry["out_msg_size"])
    if min(given, taken) < 0:
        raise TraceError(f"{name} has a size below 0")
    return given, taken, dtype


def _peer(entry: Mapping[str, Any], name: str) -> tuple[int, int]:
    lacking = [key for key in ("src_rank", "dst_rank") if entry.get(key) is None]
    if lacking:
        raise TraceError(f"{name} lacks its peer: {', '.join(lacking)}")
    return int(entry["src_rank"]), int(entry["dst_rank"])
