"""Values of JSON documents by their type: what has another type is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Larger numbers are no figures of a run.
LARGEST = 10**18


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
    """An integer, also as a JSON key; None for anything else."""
    try:
        number = None if isinstance(value, bool) or value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) <= LARGEST else None


def median(values: Iterable[float]) -> float:
    """The middle of the values; of an even number the mean of both in the middle. The standard library's costs a start 5 modules."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def flat(value: Mapping[str, Any], show: Callable[[Any], str], above: str = "") -> Iterator[tuple[str, str]]:
    """``torch.version`` and its text, and so on, of mappings in mappings."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, show, f"{above}{key}.")
        else:
            yield f"{above}{key}", show(item)


def listing(value: Any) -> tuple[Any, ...]:
    """The items of a list; none for anything else."""
    return tuple(value) if isinstance(value, list | tuple) else ()
