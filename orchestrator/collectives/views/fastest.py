"""The fastest algorithm of each size, as far as the iterations show it: 95 % over all sizes together.

Algorithms of one size take turns, so that the iterations of one number met the same machine. Each algorithm is compared with the
one that has the least median (``model/ratio.py``); the level is divided by the number of all pairs, because any may be the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING

from ...model import ratio
from ...model.frozen import dataclass
from ...views import statistics
from .experiment import Case

if TYPE_CHECKING:
    from .samples import Timed

#: The chance that any winner of a run is named wrongly.
LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """An algorithm beside the one with the least median. ``change``: by how much its time is longer.

    ``needed``: about how many iterations would decide; None: decided, or too many to name.
    """

    algorithm: str
    change: ratio.Interval
    outcome: ratio.Outcome
    needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """``best``: the algorithm with the least median. ``algorithms``: it, and all that are not clearly slower, by name.

    ``bytes``: the size; ``kind``: see ``Case.kind``. ``count``: iterations of all of them; ``needed``: so many could show a
    difference, 0: none ever, because the algorithms did not take turns. ``rivals`` are empty if nothing is judged.
    """

    kind: tuple[object, ...]
    operation: str
    bytes: int
    best: str
    algorithms: tuple[str, ...]
    count: int
    needed: int
    rivals: tuple[Rival, ...] = ()

    @property
    def judged(self) -> bool:
        return 0 < self.needed <= self.count

    @property
    def clear(self) -> bool:
        return self.judged and len(self.algorithms) == 1

    @property
    def unresolved(self) -> Rival | None:
        """Return the rival with the greatest change of those that are not decided; None if all are."""
        unresolved = [rival for rival in self.rivals if rival.outcome == "not resolved"]
        return max(unresolved, key=lambda rival: rival.change.value, default=None)


def fastest(cases: Sequence[Case], times: Mapping[int, Timed]) -> tuple[Fastest, ...]:
    """The result of each size with at least two algorithms, in the order of the plan. ``times``: case -> its iterations."""
    sizes: dict[tuple[object, ...], dict[str, Case]] = {}
    for case in cases:
        if case.number in times and times[case.number].seconds.size:
            sizes.setdefault((*case.kind, case.bytes), {}).setdefault(case.algorithm, case)
    races = [tuple(race.values()) for race in sizes.values() if len(race) > 1]
    level = LEVEL / max(1, sum(math.comb(len(race), 2) for race in races))
    return tuple(_result(race, times, level) for race in races)


def _result(race: Sequence[Case], times: Mapping[int, Timed], level: float) -> Fastest:
    import numpy as np

    common = sorted(set.intersection(*(set(times[case.number].trials.tolist()) for case in race)))
    seconds: dict[str, list[float]] = {}
    for case in race:
        timed = times[case.number]
        seconds[case.algorithm] = np.maximum(timed.seconds[np.isin(timed.trials, common)], 1e-9).tolist()
    best = min(sorted(seconds), key=lambda name: median_low(seconds[name]) if common else 0.0)
    needed = statistics.least_pairs(level) if _in_turn(race) else 0
    rivals = tuple(_rivals(best, seconds, level)) if 0 < needed <= len(common) else ()
    slower = {rival.algorithm for rival in rivals if rival.outcome == "slower"}
    return Fastest(
        kind=race[0].kind, operation=race[0].operation, bytes=race[0].bytes, best=best,
        algorithms=tuple(sorted(seconds.keys() - slower)), count=len(common), needed=needed, rivals=rivals,
    )  # fmt: skip


def _rivals(best: str, seconds: Mapping[str, Sequence[float]], level: float) -> Iterator[Rival]:
    for name in sorted(seconds.keys() - {best}):
        change = ratio.change(seconds[best], seconds[name], level=level, in_turn=True)
        if change is not None:
            outcome = change.outcome()
            needed = change.needed(len(seconds[best])) if outcome == "not resolved" else None
            yield Rival(algorithm=name, change=change, outcome=outcome, needed=needed)


def _in_turn(race: Sequence[Case]) -> bool:
    """Return whether the algorithms alternated from iteration to iteration."""
    first = [case.first_step for case in race]
    return len({case.stride for case in race}) == 1 and max(first) - min(first) < race[0].stride
