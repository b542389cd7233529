"""Stops a case when its median is known well enough: its interval of 95 % is narrower than a share of it. Pure, without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from ...model.frozen import dataclass

#: No case stops before so many iterations.
LEAST = 12
#: The interval is computed again when there are so many times as many iterations: frequent checks would stop by chance.
GROWTH = 1.2
#: With more samples the binomial distribution is replaced by the normal one.
_MANY = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The median, and the samples that enclose that of all iterations with a probability of 95 %; None with too few samples."""

    value: float
    low: float | None
    high: float | None

    def is_within(self, share: float) -> bool:
        """Whether the interval is narrower than this share of the median."""
        return self.low is not None and self.high is not None and self.high - self.low < share * self.value


def median(samples: Sequence[float]) -> Median:
    """By order statistics, which assume no distribution. Raises ValueError without samples."""
    ordered, count = sorted(samples), len(samples)
    below = _enclosing(count)
    low, high = (ordered[below - 1], ordered[count - below]) if below else (None, None)
    return Median(value=statistics.median(ordered), low=low, high=high)


def _enclosing(count: int) -> int:
    """The largest k for which fewer than k of ``count`` samples are below the median with a probability of at most 1/40."""
    if count > _MANY:
        return int(count / 2 - NormalDist().inv_cdf(1 - 1 / 40) * math.sqrt(count) / 2)
    total, limit, ways, k = 0, 2**count // 40, 1, 0
    while k < count and total + ways <= limit:
        total += ways
        ways = ways * (count - k) // (k + 1)
        k += 1
    return k


def check_counts(iterations: int) -> frozenset[int]:
    """The numbers of iterations after which the interval is computed."""
    made, count = set(), LEAST
    while count < iterations:
        made.add(count)
        count = math.ceil(count * GROWTH)
    return frozenset(made)


def is_reached(medians: Iterable[Median], share: float) -> bool:
    """Whether all cases that alternate can stop."""
    return all(median_.is_within(share) for median_ in medians)


def parse(text: str) -> float:
    """A share from ``2%`` or ``0.02``; 0: all iterations run. Raises ValueError."""
    number = float(text.strip().removesuffix("%").rstrip() or "0")
    return number / 100 if text.strip().endswith("%") else number
