"""Tensors that a script keeps beside its model in a list or a dict, among the copies of the model in its states.

Their keys are ``kept ema 0 0``, and ``kept ema 0 0 named`` with the names of a dict. Their values are a digest and sums. The first
state after each search has a key ``again``: the values of those that the search before it had found as they are, not counted as kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model import watch
from .. import json_values

KEPT, AGAIN = "kept ", "again"
#: By how much more than the weights they may differ, where sums in another order changed these.
TIMES = 10.0


def modules(copies: Mapping[str, str | None]) -> dict[str, str | None]:
    """The copies of the model that modules hold."""
    return {name: digest for name, digest in copies.items() if not name.startswith(KEPT) and name != AGAIN}


def of_script(state: watch.State) -> dict[str, str]:
    """The lists of a state that follows a search; none of any other state."""
    kept = {key: value for key, value in state.copies.items() if value and key.startswith(KEPT) and " named" not in key}
    return {**kept, AGAIN: state.copies.get(AGAIN) or ""} if AGAIN in state.copies and kept else {}


def are_as_in(own: Mapping[str, str], other: Mapping[str, str], rounding: float | None) -> bool:
    """Return whether a state after a search has all lists of another run's, and no others that changed since the search before."""
    changed, theirs = ({value for key, value in lists.items() if key != AGAIN} for lists in (own, other))
    still, as_still = ({*lists.get(AGAIN, "").split("; ")} - {""} for lists in (own, other))
    pairs = [*((value, theirs) for value in changed), *((value, changed | still) for value in theirs | as_still)]
    return bool(own and theirs) and all(value in known or is_near(value, known, rounding) for value, known in pairs)


def compared(before: watch.State | None, after: watch.State | None) -> dict[str, tuple[str, bool | None]]:
    """Key of each list -> what it was before, and whether it is so again, but for what the rounding of the weights explains."""
    if before is None or after is None or not (before.full and after.full):
        return {}
    known = {value for key, value in after.copies.items() if key.startswith(KEPT) and value}
    rounding = distance(before.sums, after.sums)
    return {
        key: (value, value in known or is_near(value, known, rounding))
        for key, value in before.copies.items()
        if key.startswith(KEPT) and value
    }


def is_near(value: str, known: Iterable[str], rounding: float | None) -> bool | None:
    """Return whether tensors that a script keeps are those of another attempt but for ``rounding``; None where sums are not known."""
    distances = [distance([*map(int, value.split()[1:])], [*map(int, other.split()[1:])]) for other in known]
    nearest = min((distance for distance in distances if distance is not None), default=None)
    return None if rounding is None or nearest is None else nearest <= TIMES * rounding


def distance(first: Sequence[int], second: Sequence[int]) -> float | None:
    """The median of the differences of sums."""
    pairs = [*zip(first, second, strict=True)] if len(first) == len(second) else []
    return json_values.median([abs(a - b) for a, b in pairs]) if pairs else None
