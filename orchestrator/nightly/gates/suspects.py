"""Versions that changed in the night in which a metric changed: named, never judged."""

from __future__ import annotations

from collections.abc import Mapping

#: The host of a node: named when the node moved, and not where one of the two nights does not tell it.
HOST = "host"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The versions of a node that differ between two nights."""
    names = sorted(name for name in {*before, *after} if before and before.get(name) != after.get(name))
    if not (before.get(HOST) and after.get(HOST)):
        names = [name for name in names if name != HOST]
    return tuple(f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names)
