"""Select the leftovers to remove: those older than a limit, then the oldest until the rest fits into a size and a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...model.frozen import dataclass, field

#: Default limits: one week, and 20 GiB per location.
OLDER_THAN_S = 7 * 86_400.0
KEEP_BYTES = 20 * 1024**3
#: On a bed, how many of the newest are kept of each kind, so that `down` and `status` take no longer after many runs.
KEPT_ON_BED = {"run": 10, "payload": 2}
TOO_MANY = "not of the newest"
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


@dataclass(kw_only=True)
class Report:
    """``removed``: in a dry run, to be removed; ``problems``: directories that could not be read or changed."""

    removed: list[Removal] = field(default_factory=list)
    remaining: list[Leftover] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, leftovers: Sequence[Leftover], chosen: Sequence[Removal]) -> None:
        removed = {id(removal.leftover) for removal in chosen}
        self.removed += chosen
        self.remaining += [leftover for leftover in leftovers if id(leftover) not in removed]


def removals(
    leftovers: Iterable[Leftover],
    *,
    older_than_s: float = OLDER_THAN_S,
    keep_bytes: int = KEEP_BYTES,
    keep: Mapping[str, int] | None = None,
    age: Callable[[float], str] = lambda seconds: f"{seconds:.0f} s",
    size: Callable[[int], str] = lambda count: f"{count} bytes",
) -> tuple[Removal, ...]:
    """The removals, oldest first. ``keep_bytes``, and ``keep``, the number by kind of those that are not in use: per location.

    ``age`` and ``size`` format the limits for messages.
    """
    oldest_first = sorted(leftovers, key=lambda leftover: (-leftover.age_s, leftover.kind, leftover.name))
    total: dict[str, int] = {}
    count = Counter((leftover.location, leftover.kind) for leftover in oldest_first if not leftover.in_use)
    for leftover in oldest_first:
        total[leftover.location] = total.get(leftover.location, 0) + leftover.size_bytes
    result = []
    for leftover in oldest_first:
        reason = ""
        if leftover.age_s >= older_than_s:
            reason = f"older than {age(older_than_s)}"
        elif total[leftover.location] > keep_bytes and leftover.age_s >= min(older_than_s, MIN_AGE_S):
            reason = f"more than {size(keep_bytes)} in total"
        elif keep and count[leftover.location, leftover.kind] > keep.get(leftover.kind, len(oldest_first)):
            reason = f"{TOO_MANY} {keep[leftover.kind]}"
        if reason and not leftover.in_use:
            result.append(Removal(leftover=leftover, reason=reason))
            total[leftover.location] -= leftover.size_bytes
            count[leftover.location, leftover.kind] -= 1
    return tuple(result)
