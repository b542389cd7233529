"""The fastest algorithm of each size, as far as the iterations show it: sign tests of pairs, 95 % over all sizes together.

Algorithms of one size take turns, so that the iterations of one number met the same machine: they are a pair. An algorithm is
slower where so many of its pairs are slower by more than a margin that chance does not explain it; Holm's method asks the
more of each comparison, the more there are. Where too few iterations were made for any outcome to tell, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from . import statistics
from .experiment import Case

if TYPE_CHECKING:
    from .samples import Timed

#: The chance that any winner of a run is named wrongly.
LEVEL = 0.05
#: A smaller difference counts as none: another run, or another machine, would not reproduce it.
MARGIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """``algorithms``: the fastest; if that is not clear, all that are not clearly slower, by name (all if one has no samples).

    ``bytes``: the size; ``kind``: see ``Case.kind``. ``count``: pairs; ``needed``: so many could show a difference, 0: none
    ever, because the algorithms did not take turns. ``others``: how many were compared with it.
    """

    kind: tuple[object, ...]
    operation: str
    bytes: int
    algorithms: tuple[str, ...]
    count: int
    needed: int
    others: int

    @property
    def judged(self) -> bool:
        return 0 < self.needed <= self.count

    @property
    def clear(self) -> bool:
        return self.judged and len(self.algorithms) == 1


def fastest(cases: Sequence[Case], times: Mapping[int, Timed]) -> tuple[Fastest, ...]:
    """The result of each size with at least two algorithms, in the order of the plan. ``times``: case -> its iterations."""
    sizes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if case.number in times and times[case.number].seconds.size:
            sizes.setdefault((*case.kind, case.bytes), []).append(case)
    races = [_Race(race, times) for race in sizes.values() if len({case.algorithm for case in race}) > 1]
    pairs = [(race, case) for race in races if race.in_turn for case in race.others]
    held = statistics.holm([race.chance(case) for race, case in pairs], LEVEL)
    slower = {case.number for (_, case), sure in zip(pairs, held, strict=True) if sure}
    needed = statistics.least_pairs(LEVEL / max(1, len(pairs)))
    return tuple(race.result(slower, needed) for race in races)


class _Race:
    """The algorithms of one size: the iterations that all of them have, and which algorithm is faster in those."""

    def __init__(self, cases: Sequence[Case], times: Mapping[int, Timed]) -> None:
        import numpy as np

        common = set.intersection(*(set(times[case.number].trials.tolist()) for case in cases))
        self._times = {}
        for case in cases:
            timed = times[case.number]
            self._times[case.number] = timed.seconds[np.isin(timed.trials, list(common))]
        self.count, self.in_turn = len(common), _in_turn(cases)
        ranked = sorted(cases, key=lambda case: (self._median(case), case.algorithm))
        self.best, self.others = ranked[0], ranked[1:]

    def chance(self, case: Case) -> float:
        """The probability that so many pairs are slower than the best by more than the margin, by chance alone."""
        import numpy as np

        late = self._times[case.number] > self._times[self.best.number] * (1 + MARGIN)
        return statistics.sign(int(np.count_nonzero(late)), self.count)

    def result(self, slower: Set[int], needed: int) -> Fastest:
        best = self.best
        fastest_names = {case.algorithm for case in (best, *self.others) if case.number not in slower}
        return Fastest(
            kind=best.kind,
            operation=best.operation,
            bytes=best.bytes,
            algorithms=tuple(sorted(fastest_names)),
            count=self.count,
            needed=needed if self.in_turn else 0,
            others=len(self.others),
        )

    def _median(self, case: Case) -> float:
        import numpy as np

        return float(np.median(self._times[case.number])) if self.count else 0.0


def _in_turn(race: Sequence[Case]) -> bool:
    """Whether the algorithms alternated from iteration to iteration."""
    first = [case.first_step for case in race]
    return len({case.stride for case in race}) == 1 and max(first) - min(first) < race[0].stride
