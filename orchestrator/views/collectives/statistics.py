"""Percentiles with a named definition, intervals of changes, tests against chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from ...model.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: The definition of every percentile here (Hyndman and Fan's type 1): each is a sample that was really measured.
DEFINITION = "nearest rank"
#: With fewer samples than this, the p99 is the maximum.
ENOUGH_FOR_P99 = 100
#: The most samples of each run that are compared pair by pair.
_COMPARED = 1000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Zero is outside."""
        return self.low > 0 or self.high < 0


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


def sign(more: int, pairs: int) -> float:
    """The probability, by chance alone, that at least so many of the pairs differ in the same direction.

    The two-sided sign test: no direction was expected beforehand.
    """
    return min(1.0, 2 * above_chance(more, pairs, 0.5))


def least_pairs(level: float) -> int:
    """The least number of pairs with which the sign test can reach ``level``, if all of them differ."""
    return math.ceil(math.log2(2 / level) - 1e-9)


def holm(chances: Sequence[float], level: float) -> list[bool]:
    """Which of several findings hold, so that any of them is wrong in no more than ``level`` of all cases (Holm's method)."""
    held = [False] * len(chances)
    for rank, spot in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[spot] > level / (len(chances) - rank):
            break
        held[spot] = True
    return held


def change(before: Floats, after: Floats, level: float = 0.05) -> Interval | None:
    """How many times ``after`` is ``before``, minus 1: the shift of two independent samples on a logarithmic scale.

    By Hodges and Lehmann: the median of all ratios between the two, and the bounds that contain it with probability 1 - ``level``
    (the inverted rank-sum test). Samples of one run follow each other: if neighbours are alike, they count as fewer samples
    (lag-1 autocorrelation of ranks). None if there are too few for an interval. Raises ValueError without samples, or for
    samples that are not above 0.
    """
    import numpy as np

    if before.size == 0 or after.size == 0 or min(before.min(), after.min()) <= 0:
        raise ValueError("samples above 0 are needed")
    old, new = _thinned(before), _thinned(after)
    ratios = np.sort((np.log(new)[:, None] - np.log(old)[None, :]).ravel())
    deviation = math.sqrt(ratios.size * (old.size + new.size + 1) / 12 * _variance_inflation(before, after))
    below = int(ratios.size / 2 - NormalDist().inv_cdf(1 - level / 2) * deviation)
    if below < 1:
        return None
    figures = np.expm1([np.median(ratios), ratios[below - 1], ratios[-below]])
    return Interval(value=float(figures[0]), low=float(figures[1]), high=float(figures[2]))


def least_samples(level: float) -> int:
    """The least number of samples per run with which ``change`` gives an interval, if they show no autocorrelation."""
    quantile, count = NormalDist().inv_cdf(1 - level / 2), 2
    while True:
        least_alike = min(0.9, 0.7 / math.sqrt(count))
        inflation = (1 + least_alike) / (1 - least_alike)
        deviation = math.sqrt(count**2 * (2 * count + 1) / 12 * inflation)
        if int(count**2 / 2 - quantile * deviation) >= 1:
            return count
        count += 1


def shift(before: Floats, after: Floats, level: float, *, is_relative: bool = False) -> Interval | None:
    """How much more ``after`` is than ``before``, samples of independent runs; relative: how many times, minus 1.

    By Hodges and Lehmann: the median of all differences, and the bounds that contain the shift with a probability of at least
    1 - ``level``: the inverted test of Mann and Whitney, by its exact distribution. None if there are too few samples.
    Raises ValueError without samples, and if relative for samples that are not above 0.
    """
    import numpy as np

    if before.size == 0 or after.size == 0 or (is_relative and min(before.min(), after.min()) <= 0):
        raise ValueError("samples are needed; for a relative shift above 0")
    old, new = (np.log(before), np.log(after)) if is_relative else (before, after)
    differences = np.sort((new[:, None] - old[None, :]).ravel())
    below = _exact_rank(old.size, new.size, level)
    if below < 1:
        return None
    figures = np.array([np.median(differences), differences[below - 1], differences[-below]])
    value, low, high = (float(figure) for figure in (np.expm1(figures) if is_relative else figures))
    return Interval(value=value, low=low, high=high)


def least_group(level: float) -> int:
    """The least number of runs per group with which ``shift`` gives an interval."""
    return next(count for count in itertools.count(1) if 2 / math.comb(2 * count, count) <= level)


def _exact_rank(first: int, second: int, level: float) -> int:
    """The largest k for which the statistic of Mann and Whitney is below k with a probability of at most ``level`` / 2.

    Its distribution has the coefficients of the Gaussian binomial, the product of (1 - q^(second + i)) / (1 - q^i).
    """
    most = first * second
    counts = [1] + [0] * most
    for i in range(1, first + 1):
        for u in range(most, second + i - 1, -1):
            counts[u] -= counts[u - second - i]
        for u in range(i, most + 1):
            counts[u] += counts[u - i]
    limit = level / 2 * math.comb(first + second, first)
    return sum(total <= limit for total in itertools.accumulate(counts))


def drift(samples: Floats) -> float:
    """The difference between the two halves of a run, as a share: the noise that the run itself shows."""
    import numpy as np

    if samples.size < 2:
        return 0.0
    half = samples.size // 2
    first, second = float(np.median(samples[:half])), float(np.median(samples[half:]))
    return abs(second / first - 1) if first > 0 else 0.0


def _thinned(samples: Floats) -> Floats:
    """Thin the samples evenly, so that the pairwise comparison is fast."""
    return samples[:: 1 + (samples.size - 1) // _COMPARED]


def _variance_inflation(*runs: Floats) -> float:
    """The factor by which autocorrelation increases the variance; the largest of the runs."""
    return max((1 + correlation) / (1 - correlation) for correlation in map(_autocorrelation, runs))


def _autocorrelation(samples: Floats) -> float:
    """Lag-1 autocorrelation of ranks, at the upper end of its uncertainty (0.7 standard errors); 0 to 0.9."""
    import numpy as np

    ranks = np.argsort(np.argsort(samples, kind="stable"), kind="stable") - (samples.size - 1) / 2
    total = float((ranks * ranks).sum())
    correlation = float((ranks[1:] * ranks[:-1]).sum()) / total if total else 0.0
    return min(0.9, max(0.0, correlation + 0.7 / math.sqrt(samples.size)))


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
