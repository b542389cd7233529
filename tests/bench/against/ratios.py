"""How much slower than before: the ratio of pairs of measurements, its interval, and what follows from it. All of it is pure.

The ratio is the median of the averages of any two log pair ratios (Hodges and Lehmann, 1963), its 95 % interval that of the signed-rank
test (Wilcoxon, 1945). Both need no normal distribution: one pair that a busy machine spoiled moves neither much. Fewer than six pairs
have no 95 % interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement

LEVEL = 0.95
#: Either end of the interval lies within this factor of the ratio: the ratio is resolved.
RESOLVED = 1.025
#: The interval lies above this ratio: the measure is too slow.
TOO_SLOW = 1.05
#: Before, now.
Pair = tuple[float, float]
HEAD = ("measure", "before", "now", "now / before", "95 % interval", "pairs", "result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Time now by time before: 1.1 is 10 % slower."""

    value: float
    lower: float
    upper: float

    @property
    def is_resolved(self) -> bool:
        return max(self.upper / self.value, self.value / self.lower if self.lower else math.inf) <= RESOLVED

    @property
    def is_too_slow(self) -> bool:
        return self.lower > TOO_SLOW

    @property
    def result(self) -> str:
        """The decision in words. An interval above the limit is too slow, however wide it is."""
        if self.is_too_slow:
            return f"more than {TOO_SLOW - 1:.0%} slower"
        if not self.is_resolved:
            return "not resolved"
        return "slower" if self.lower > 1 else "faster" if self.upper < 1 else "same"


def ratio(pairs: Sequence[Pair]) -> Ratio:
    """Needs at least one pair. Too few pairs for the level leave the interval without ends."""
    logs = [math.log(now / before) for before, now in pairs]
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))
    left_out = averages_left_out(len(pairs))
    ends = (averages[left_out - 1], averages[-left_out]) if left_out else (-math.inf, math.inf)
    return Ratio(value=math.exp(statistics.median(averages)), lower=math.exp(ends[0]), upper=math.exp(ends[1]))


def averages_left_out(pairs: int, level: float = LEVEL) -> int:
    """The interval goes from the k-th smallest average to the k-th largest; 0: no interval of this level."""
    limit = (1 - level) / 2 * 2**pairs
    return sum(count <= limit for count in accumulate(rank_sums(pairs)))


def rank_sums(pairs: int) -> Sequence[int]:
    """How many sets of ranks from 1 to ``pairs`` have the sum 0, 1, 2 …: the signed-rank distribution times 2 ** pairs."""
    counts = [1] + [0] * (pairs * (pairs + 1) // 2)
    for rank in range(1, pairs + 1):
        counts = [count + (counts[total - rank] if total >= rank else 0) for total, count in enumerate(counts)]
    return counts


def is_open(pairs: Sequence[Pair]) -> bool:
    """More pairs are needed."""
    return not pairs or not ratio(pairs).is_resolved


def too_slow(samples: Mapping[str, Sequence[Pair]]) -> list[str]:
    return [title for title, pairs in samples.items() if pairs and ratio(pairs).is_too_slow]


def table(samples: Mapping[str, Sequence[Pair]]) -> str:
    """One row per measure; "-" for one that has no pairs."""
    rows = [HEAD, ("---",) * len(HEAD), *(_row(title, pairs) for title, pairs in samples.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(title: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    if not pairs:
        return (title, *("-",) * (len(HEAD) - 1))
    before, now = (statistics.median(times) for times in zip(*pairs, strict=True))
    known = ratio(pairs)
    interval = f"{known.lower:.3f} to {known.upper:.3f}" if known.lower else "-"
    return (title, f"{before:.3f} s", f"{now:.3f} s", f"{known.value:.3f}", interval, str(len(pairs)), known.result)
