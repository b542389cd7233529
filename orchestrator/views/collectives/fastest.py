"""The fastest algorithm of each size, as far as the samples tell: bootstrap of paired differences, 95 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import statistics
from .setting import Case

if TYPE_CHECKING:
    from .statistics import Floats

#: Fewer pairs prove nothing.
LEAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """``algorithms``: the one with the lowest median first, and those that are not clearly slower (all, if one has no samples).

    ``bytes``: the size; ``kind``: see ``Case.kind``. ``count``: pairs. ``others``: how many were compared with it.
    """

    kind: tuple[object, ...]
    operation: str
    bytes: int
    algorithms: tuple[str, ...]
    count: int
    others: int

    @property
    def clear(self) -> bool:
        return len(self.algorithms) == 1


def fastest(cases: Sequence[Case], times: Mapping[int, Floats]) -> tuple[Fastest, ...]:
    """One per size with at least two algorithms, in the order of the plan. ``times``: case -> one figure per trial."""
    sizes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if times.get(case.number) is not None and times[case.number].size:
            sizes.setdefault((*case.kind, case.bytes), []).append(case)
    return tuple(_of_size(found, times) for found in sizes.values() if len({one.algorithm for one in found}) > 1)


def _of_size(cases: list[Case], times: Mapping[int, Floats]) -> Fastest:
    import numpy as np

    ranked = sorted(cases, key=lambda case: float(np.median(times[case.number])))
    best = ranked[0]
    count = min(times[case.number].size for case in ranked)
    tied = [case.algorithm for case in ranked[1:] if not _slower(times[case.number], times[best.number])]
    return Fastest(
        kind=best.kind,
        operation=best.operation,
        bytes=best.bytes,
        algorithms=(best.algorithm, *tied),
        count=count,
        others=len(ranked) - 1,
    )


def _slower(one: Floats, best: Floats) -> bool:
    """Paired by number of trial; the first ones where one has more."""
    count = min(one.size, best.size)
    return count >= LEAST and statistics.paired(best[:count], one[:count]).low > 0
