"""Select the leftovers to remove: those older than a limit, then the oldest until the rest fits into a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: Default limits: one week, and 20 GiB per location.
OLDER_THAN_S = 7 * 86_400.0
KEEP_BYTES = 20 * 1024**3
#: Younger leftovers are kept regardless of their size, unless the command sets a shorter age: a starting run may need them.
MIN_AGE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file or directory that an ended run left. ``location``: a bed's host, or a directory of the controller.

    ``in_use``: why it must be kept; empty if it may be removed.
    """

    kind: str
    name: str
    location: str
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
    """The removals, oldest first. ``keep_bytes``: per location; ``age`` and ``size`` format the limits for messages."""
    oldest_first = sorted(leftovers, key=lambda leftover: (-leftover.age_s, leftover.kind, leftover.name))
    total: dict[str, int] = {}
    for leftover in oldest_first:
        total[leftover.location] = total.get(leftover.location, 0) + leftover.size_bytes
    result = []
    for leftover in oldest_first:
        reason = ""
        if leftover.age_s >= older_than_s:
            reason = f"older than {age(older_than_s)}"
        elif total[leftover.location] > keep_bytes and leftover.age_s >= min(older_than_s, MIN_AGE_S):
            reason = f"more than {size(keep_bytes)} in total"
        if reason and not leftover.in_use:
            result.append(Removal(leftover=leftover, reason=reason))
            total[leftover.location] -= leftover.size_bytes
    return tuple(result)
