"""Percentiles with a named definition, intervals of changes, tests against chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: The definition of every percentile here (Hyndman and Fan's type 1): each is a sample that was really measured.
DEFINITION = "nearest rank"
#: A p99 of fewer samples than this is the maximum by another name.
ENOUGH_FOR_P99 = 100
_RESAMPLES = 2000
#: Draws of one bootstrap at most: very many samples need fewer resamples for the same interval.
_DRAWS = 4_000_000
_SEED = 20261121


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
    """An estimate with its 95 % confidence interval."""

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
    """By chance alone: the probability that so many of the pairs, or more, differ in this direction or as many in the other.

    The two-sided sign test: which of the two would be ahead was not said before.
    """
    return min(1.0, 2 * above_chance(more, pairs, 0.5))


def least_pairs(level: float) -> int:
    """So many pairs it takes for the sign test to come below ``level`` at all, should each of them differ."""
    return math.ceil(math.log2(2 / level) - 1e-9)


def holm(chances: Sequence[float], level: float) -> list[bool]:
    """Which of several findings hold, so that any of them is wrong in no more than ``level`` of all cases (Holm's method)."""
    held = [False] * len(chances)
    for rank, spot in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[spot] > level / (len(chances) - rank):
            break
        held[spot] = True
    return held


def change(before: Floats, after: Floats) -> Interval:
    """The relative change of the median, ``after / before - 1``, of two independent samples. Raises ValueError for none."""
    import numpy as np

    if before.size == 0 or after.size == 0:
        raise ValueError("no samples")
    old, new = _medians(before), _medians(after, seed=_SEED + 1)
    count = min(old.size, new.size)
    return _interval(float(np.median(after) / np.median(before)) - 1, new[:count] / old[:count] - 1)


def median(samples: Floats) -> Interval:
    """The median, and the samples between which it lies with at least 95 % (order statistics: no distribution is assumed).

    Without bounds where there are too few samples for any. Raises ValueError for none.
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


def _interval(value: float, estimates: Floats) -> Interval:
    import numpy as np

    low, high = np.percentile(estimates, (2.5, 97.5))
    return Interval(value=value, low=float(low), high=float(high))


def _medians(samples: Floats, seed: int = _SEED) -> Floats:
    """Medians of resamples; the same samples give the same answer."""
    import numpy as np

    draw = np.random.default_rng(seed)
    resamples = max(200, min(_RESAMPLES, _DRAWS // samples.size))
    at_once = max(1, 1_000_000 // samples.size)
    rows = [
        np.median(samples[draw.integers(0, samples.size, (min(at_once, resamples - done), samples.size))], axis=1)
        for done in range(0, resamples, at_once)
    ]
    return np.concatenate(rows)
