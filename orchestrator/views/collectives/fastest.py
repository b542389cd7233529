"""The fastest algorithm of each size, as far as the samples tell: sign tests of paired trials, 95 % over all sizes together.

Many comparisons find something by chance; Holm's method asks so much more of each of them. Trials of a case follow each
other, so that all of them may have met a busy moment: an algorithm is only slower where the intervals of the two medians lie
apart as well. Where nothing is slower there is no order among the algorithms, and the same samples in another run that differ
by noise alone give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import statistics
from .setting import Case

if TYPE_CHECKING:
    from .statistics import Floats

#: Fewer pairs prove nothing.
LEAST = 10
#: The chance that any winner of a run is named wrongly.
LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """``algorithms``: the fastest; where it is not clear, all that are not clearly slower, by name (all, if one has no samples).

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
    races = [_ranked(found, times) for found in sizes.values() if len({one.algorithm for one in found}) > 1]
    pairs = [(race[0], case) for race in races for case in race[1:]]
    held = statistics.holm([_chance(times[case.number], times[best.number]) for best, case in pairs], LEVEL)
    between = {case.number: statistics.median(times[case.number]) for race in races for case in race}
    slower = {
        case.number
        for (best, case), sure in zip(pairs, held, strict=True)
        if sure and between[case.number].low > between[best.number].high
    }
    return tuple(_told(race, slower, times) for race in races)


def _ranked(cases: list[Case], times: Mapping[int, Floats]) -> list[Case]:
    import numpy as np

    return sorted(cases, key=lambda case: (float(np.median(times[case.number])), case.algorithm))


def _told(ranked: list[Case], slower: Set[int], times: Mapping[int, Floats]) -> Fastest:
    best = ranked[0]
    return Fastest(
        kind=best.kind,
        operation=best.operation,
        bytes=best.bytes,
        algorithms=tuple(sorted({case.algorithm for case in ranked if case.number not in slower})),
        count=min(times[case.number].size for case in ranked),
        others=len(ranked) - 1,
    )


def _chance(one: Floats, best: Floats) -> float:
    """Paired by number of trial; the first ones where one has more."""
    count = min(one.size, best.size)
    return statistics.paired(best[:count], one[:count]) if count >= LEAST else 1.0
