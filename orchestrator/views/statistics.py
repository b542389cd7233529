"""Percentiles with a named definition, intervals of medians, tests against chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..model.frozen import dataclass
from ..model.ratio import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: The definition of every percentile here (Hyndman and Fan's type 1): each is a sample that was really measured.
DEFINITION = "nearest rank"
#: With fewer samples than this, the p99 is the maximum.
ENOUGH_FOR_P99 = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds. ``p99`` only with at least 100 samples."""

    count: int
    min: float
    p50: float
    p95: float
    max: float
    mean: float
    p99: float | None = None


def spread(samples: Floats) -> Spread | None:
    """None without samples."""
    import numpy as np

    if samples.size == 0:
        return None
    low, mid, high, p99 = (float(value) for value in np.percentile(samples, (0, 50, 95, 99), method="inverted_cdf"))
    return Spread(
        count=int(samples.size),
        min=low,
        p50=mid,
        p95=high,
        max=float(samples.max()),
        mean=float(samples.mean()),
        p99=p99 if samples.size >= ENOUGH_FOR_P99 else None,
    )


def least_pairs(level: float) -> int:
    """The least number of pairs that differ in one direction by chance in no more than ``level`` of all cases (the sign test)."""
    return math.ceil(math.log2(2 / level) - 1e-9)


def median(samples: Floats) -> Interval:
    """The median, and the samples that enclose it with a probability of at least 95 % (order statistics, no distribution assumed).

    Without bounds if there are too few samples. Raises ValueError for no samples.
    """
    import numpy as np

    if samples.size == 0:
        raise ValueError("no samples")
    ordered, count = np.sort(samples), int(samples.size)
    below = next((k for k in range(count // 2, 0, -1) if above_chance(count - k + 1, count, 0.5) <= 0.025), 0)
    low, high = (float(ordered[below - 1]), float(ordered[count - below])) if below else (-math.inf, math.inf)
    return Interval(value=float(np.median(samples)), low=low, high=high)


def above_chance(hits: int, tries: int, chance: float) -> float:
    """The probability of at least so many hits by chance alone: the upper tail of the binomial distribution."""
    if hits <= 0 or tries <= 0:
        return 1.0
    if not 0 < chance < 1:
        return float(chance >= 1)
    total = 0.0
    for k in range(hits, tries + 1):
        part = math.exp(_log_binomial(tries, k, chance))
        total += part
        if k > tries * chance and part < total * 1e-12:
            break  # the rest falls off faster than geometrically
    return min(1.0, total)


def _log_binomial(n: int, k: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + k * math.log(p) + (n - k) * math.log1p(-p)
