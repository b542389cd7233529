"""When an event happened, and which of two came first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..model.event import Event, History


def clock(history: History) -> Callable[[Event], float]:
    """Event -> seconds since the run began.

    Events of the controller's own boot are placed by CLOCK_MONOTONIC, which every process of a host shares; events of
    other hosts by their arrival in the journal.
    """
    begin = history.first("run.begin") or next(iter(history.events), None)
    if begin is None:
        return lambda event: event.t
    boot, mono, start = begin.at.boot, begin.at.mono, begin.t
    return lambda event: start + event.at.mono - mono if boot and event.at.boot == boot else event.t


def before(one: Event, other: Event) -> bool:
    """Whether ``one`` happened before ``other``: by CLOCK_MONOTONIC on one boot, else by arrival in the journal."""
    if one.at.boot and one.at.boot == other.at.boot:
        return one.at.mono < other.at.mono
    return one.seq < other.seq


def number(value: Any) -> float | None:
    """A figure written as a number or as ``float.hex``; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(value: Any) -> int | None:
    """An integer, also one that was a JSON key; None for anything else."""
    try:
        return None if isinstance(value, bool) or value is None else int(value)
    except (TypeError, ValueError):
        return None


def text(value: Any) -> str | None:
    """A string; None for anything else."""
    return value if isinstance(value, str) else None


def names(value: Any) -> tuple[str, ...]:
    """The strings of a list."""
    return tuple(item for item in listing(value) if isinstance(item, str))


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listing(value: Any) -> tuple[Any, ...]:
    """The items of a list, or none for anything else."""
    return tuple(value) if isinstance(value, list | tuple) else ()
