"""An item as a trial's file has it -> cases.Item. Pure, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from . import cases

_FIELDS = {field.name: field for field in dataclasses.fields(cases.Item)}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,), "bytes": (int,), "trials": (int,), "gap_ms": (int, float), "algorithm": (str,), "dtype": (str,),
    "groups": (str, int, list, tuple), "operator": (str,), "root": (int,), "shares": (list, tuple), "asynchronous": (bool,),
}  # fmt: skip
_WORDS = {str: "a name", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}


def problems(given: Mapping[str, Any]) -> Iterator[str]:
    """What keeps ``given`` from being an item, each as ``name: what must be (got …)``."""
    if "operation" not in given:
        yield "operation: is missing"
    for name, value in given.items():
        if name not in _FIELDS:
            yield f"{name}: is no key of an item; known: {', '.join(_FIELDS)}"
        elif not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            yield f"{name}: must be {_WORDS[_KINDS[name][-1 if float in _KINDS[name] else 0]]} (got {value!r})"
    if isinstance(given.get("groups"), list | tuple) and not _lists_of_ranks(given["groups"]):
        yield f"groups: must be a list of lists of ranks such as [[0, 1], [2, 3]] (got {given['groups']!r})"
    shares = given.get("shares")
    if isinstance(shares, list | tuple) and not all(_is_number(one) for one in shares):
        yield f"shares: must be numbers (got {shares!r})"


def item(given: Mapping[str, Any], gap_scale: float = 1.0) -> cases.Item:
    """The item. ``groups`` may be written as lists of ranks, or as for the workload ``collective``."""
    made = dict(given)
    if "groups" in made:
        made["groups"] = _groups(made["groups"])
    if "shares" in made:
        made["shares"] = tuple(float(one) for one in made["shares"])
    found = cases.Item(**made)
    return dataclasses.replace(found, gap_ms=float(found.gap_ms) * gap_scale)


def _groups(given: Any) -> str:
    if isinstance(given, list | tuple):
        return "/".join(",".join(str(rank) for rank in group) for group in given)
    return str(given)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _lists_of_ranks(given: Any) -> bool:
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in group)
        for group in given
    )
