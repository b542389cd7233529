"""Stops a case when its median is known well enough: its interval of 95 % is narrower than a share of it. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...model import ratio

#: No case stops before so many iterations.
LEAST = 12
#: The interval is computed again when there are so many times as many iterations: frequent checks would stop by chance.
GROWTH = 1.3
#: With a precision a case may have so many times the iterations that the user set.
MOST_TIMES = 100


def is_within(median: ratio.Interval | None, share: float) -> bool:
    """Whether the interval is narrower than this share of the median."""
    return median is not None and median.high - median.low < share * median.value


def most_iterations(iterations: int, share: str) -> int:
    """The iterations that are planned; those that the precision does not need are left out."""
    return iterations * MOST_TIMES if share and iterations > 0 else iterations


def check_counts(iterations: int) -> frozenset[int]:
    """The numbers of iterations after which the interval is computed."""
    made, count = set(), LEAST
    while count < iterations:
        made.add(count)
        count = math.ceil(count * GROWTH)
    return frozenset(made)


def is_reached(medians: Iterable[ratio.Interval | None], share: float) -> bool:
    """Whether all cases that alternate can stop."""
    return all(is_within(median, share) for median in medians)


def parse(text: str) -> float:
    """A share from ``2%`` or ``0.02``; 0: all iterations run. Raises ValueError."""
    number = float(text.strip().removesuffix("%").rstrip() or "0")
    return number / 100 if text.strip().endswith("%") else number
