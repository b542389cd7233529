"""Which leftovers are removed: those older than a limit, then the oldest until the rest fits into a size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: What is kept unless the command says otherwise: for a week, and 20 GiB in each place.
OLDER_THAN_S = 7 * 86_400.0
KEEP_BYTES = 20 * 1024**3
#: What is younger stays whatever its size, unless the command names a shorter age: a run that begins may need it.
YOUNGEST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that an ended run left. ``place``: a bed's host, or a directory of the controller.

    ``in_use``: why it must stay; empty where it may go.
    """

    kind: str
    name: str
    place: str
    size_bytes: int
    age_s: float
    in_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    leftover: Leftover
    reason: str


def removals(
    leftovers: Iterable[Leftover],
    *,
    older_than_s: float = OLDER_THAN_S,
    keep_bytes: int = KEEP_BYTES,
    age: Callable[[float], str] = lambda seconds: f"{seconds:.0f} s",
    size: Callable[[int], str] = lambda count: f"{count} bytes",
) -> tuple[Removal, ...]:
    """Oldest first. ``keep_bytes`` counts for each place; ``age`` and ``size`` show limits to people."""
    oldest_first = sorted(leftovers, key=lambda leftover: (-leftover.age_s, leftover.kind, leftover.name))
    total: dict[str, int] = {}
    for leftover in oldest_first:
        total[leftover.place] = total.get(leftover.place, 0) + leftover.size_bytes
    result = []
    for leftover in oldest_first:
        reason = ""
        if leftover.age_s >= older_than_s:
            reason = f"older than {age(older_than_s)}"
        elif total[leftover.place] > keep_bytes and leftover.age_s >= min(older_than_s, YOUNGEST_S):
            reason = f"more than {size(keep_bytes)} there"
        if reason and not leftover.in_use:
            result.append(Removal(leftover=leftover, reason=reason))
            total[leftover.place] -= leftover.size_bytes
    return tuple(result)
