"""What lasts: a rank or a link that is slower than the others in at least two cases, by more than chance explains.

Each case compares a candidate with the others of the same iterations, by the rule of ``model/ratio.py``. The level of its interval
is such that in LEVEL of all runs any two of the cases lie beyond the least difference by chance, for any candidate: a test by the
second smallest of m probabilities (Wilkinson, "A statistical consideration in psychological research", Psychological Bulletin 48,
1951). So a single noisy case accuses nobody, nor does a delay in a few iterations of each: intervals are those of medians.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import median_low
from typing import TypeVar

from ...model import ratio
from ...model.frozen import dataclass

Candidate = TypeVar("Candidate", bound=Hashable)

#: In this part of all runs in which nothing is slow, something is named.
LEVEL = 0.01
#: So many cases must show it.
LEAST_CASES = 2
#: With fewer iterations a case does not count.
LEAST_TRIALS = 5
#: The least difference that counts: of a link against others, and of a rank's own delays as a part of the time.
LEAST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A candidate against the others: ``by_case``: case -> change, and ``counts``: case -> iterations."""

    by_case: Mapping[int, ratio.Interval]
    counts: Mapping[int, int]
    is_relative: bool = True

    @property
    def slower(self) -> tuple[int, ...]:
        """The cases in which it is slower."""
        return tuple(case for case, change in self.by_case.items() if change.low > LEAST)

    @property
    def lasts(self) -> bool:
        return len(self.slower) >= LEAST_CASES

    @property
    def value(self) -> float:
        """The middle of the cases that show it; of all, if none does."""
        return median_low([self.by_case[case].value for case in self.slower or self.by_case])

    @property
    def best(self) -> int:
        """The case that limits it most: what lasts is in every case."""
        return min(self.by_case, key=lambda case: self.by_case[case].high)

    @property
    def most(self) -> float:
        """It may be slower by so much."""
        return self.by_case[self.best].high

    def needed(self, limit: float) -> int | None:
        """About how many iterations would show that it is slower by less than ``limit``, or by more."""
        return self.by_case[self.best].needed(self.counts[self.best], limit, self.is_relative)


def changes(
    samples: Mapping[int, Mapping[Candidate, Sequence[float]]], *, is_relative: bool
) -> dict[Candidate, Changes]:
    """Candidate -> its changes. ``samples``: case -> candidate -> one figure per iteration, in order: its time in units of that of
    the others, or, not ``is_relative``, what it costs beyond them."""
    counts = {
        candidate: {case: len(own[candidate]) for case, own in samples.items() if len(own.get(candidate, ())) >= LEAST_TRIALS}
        for candidate in dict.fromkeys(candidate for own in samples.values() for candidate in own)
    }  # fmt: skip
    counts = {candidate: known for candidate, known in counts.items() if known}
    return {
        candidate: Changes(
            by_case={case: _change(samples[case][candidate], len(counts), len(known), is_relative) for case in known},
            counts=known,
            is_relative=is_relative,
        )
        for candidate, known in counts.items()
    }


def _change(figures: Sequence[float], candidates: int, cases: int, is_relative: bool) -> ratio.Interval:
    """``2 *``: an interval has two ends."""
    pairs = math.comb(max(cases, LEAST_CASES), LEAST_CASES)
    level = min(0.05, 2 * math.sqrt(LEVEL / (candidates * pairs)))
    others = [1.0 if is_relative else 0.0] * len(figures)
    change = ratio.change(others, figures, level=level, in_turn=True, is_relative=is_relative)
    assert change is not None  # LEAST_TRIALS
    return change
