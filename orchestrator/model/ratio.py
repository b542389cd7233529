"""One rule for every comparison: a change with its interval is faster or slower, equal, or not resolved.

Samples in order of time are cut into 6 to 20 blocks, each with its median; fewer samples are blocks by themselves. The interval is
Student's, of the mean of the blocks (batch means: Schmeiser, Operations Research 30, 1982). Samples that were taken in turn are
compared block by block, others by Welch (Biometrika 34, 1947). If a block is like the one before, blocks count for fewer, by the
lag-1 autocorrelation r: (1 - r) / (1 + r). The interval always contains the change of the medians, which tables show.

A change is faster or slower if its interval lies beyond the least difference that counts, and equal if it lies within MARGIN (two
one-sided tests: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Any other is not resolved.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from .frozen import dataclass

Outcome = Literal["slower", "faster", "equal", "not resolved"]
#: The least difference that counts: another run, or another machine, would not reproduce a smaller one.
MARGIN = 0.02
#: With fewer samples there is no interval.
LEAST = 3
#: Numbers of blocks: BLOCKS if each has three samples or more, so that one that was disturbed does not count.
LEAST_BLOCKS, BLOCKS, MOST_BLOCKS = 6, 10, 20
#: No number of samples is named beyond this one.
MOST_NEEDED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its confidence interval: a median, or the change from one median to another (relative 0.1: 10 % more)."""

    value: float
    low: float
    high: float

    def outcome(self, least: float = MARGIN, equal: float = MARGIN) -> Outcome:
        """Judge a change of times. ``least``: the least difference that counts; ``equal``: what an equal one stays within."""
        if self.low > least or self.high < -least:
            return "slower" if self.low > least else "faster"
        return "equal" if -equal <= self.low and self.high <= equal else "not resolved"

    def needed(self, count: int, least: float = MARGIN, is_relative: bool = True) -> int | None:
        """Estimate how many samples in place of ``count`` would decide, by two digits; None for too many to name."""
        ends = self.value, max(self.low, -1 + 1e-9) if is_relative else self.low, self.high, least
        value, low, high, least = map(math.log1p, ends) if is_relative else ends
        beyond = abs(value) - least
        toward = value - low if value > 0 else high - value
        half = toward if beyond > 0 else max(value - low, high - value)
        more = max(1.2, (half / beyond) ** 2 if beyond else math.inf) * count
        if more > MOST_NEEDED:
            return None
        unit = int(10 ** max(0, math.floor(math.log10(more)) - 1))
        return math.ceil(more / unit - 1e-9) * unit


def change(
    before: Sequence[float], after: Sequence[float], *, level: float, in_turn: bool = False, independent: bool = False,
    is_relative: bool = True,
) -> Interval | None:  # fmt: skip
    """The change from ``before`` to ``after``, with an interval that misses it with a probability of ``level``.

    ``in_turn``: samples of one place are a pair. ``independent``: each is of a run of its own. None for fewer than LEAST samples.
    Raises ValueError for a relative change of what is not above 0.
    """
    if min(len(before), len(after)) < LEAST:
        return None
    if is_relative and min(*before, *after) <= 0:
        raise ValueError("a relative change needs samples above 0")
    scale: Callable[[float], float] = math.log if is_relative else float
    old, new = ([scale(sample) for sample in side] for side in (before, after))
    blocks = (old, new) if independent else (_blocks(old), _blocks(new))
    centre = statistics.fmean(blocks[1]) - statistics.fmean(blocks[0])
    pairs = [[b - a for a, b in zip(*blocks, strict=True)]] if in_turn else blocks
    half = _half_of_runs(blocks, level) if independent else _half(pairs, level)
    value = statistics.median_low(new) - statistics.median_low(old)
    ends = value, min(value, centre - half), max(value, centre + half)
    value, low, high = (math.expm1(min(end, 99.0)) for end in ends) if is_relative else ends
    return Interval(value=value, low=low, high=high)


def median(samples: Sequence[float], level: float = 0.05) -> Interval | None:
    """The median of times with its interval; None for fewer than LEAST samples."""
    if len(samples) < LEAST or min(samples) <= 0:
        return None
    value, blocks = statistics.median_low(samples), _blocks([math.log(sample) for sample in samples])
    centre, half = statistics.fmean(blocks), _half([blocks], level)
    return Interval(
        value=value, low=min(value, math.exp(centre - half)), high=max(value, math.exp(min(centre + half, 99.0)))
    )


def _blocks(samples: Sequence[float]) -> list[float]:
    most = max(LEAST_BLOCKS, min(BLOCKS, len(samples) // 3), len(samples) // BLOCKS)
    count = min(len(samples), most, MOST_BLOCKS)
    ends = [len(samples) * block // count for block in range(count + 1)]
    return [statistics.median(samples[begin:end]) for begin, end in itertools.pairwise(ends)]


def _half(groups: Sequence[Sequence[float]], level: float) -> float:
    """Half of the interval of a mean, or of the difference between two."""
    variances = [statistics.variance(blocks) / len(blocks) * _inflation(blocks) for blocks in groups]
    parts = sum(part**2 / (len(blocks) - 1) for part, blocks in zip(variances, groups, strict=True))
    return student(level, math.floor(sum(variances) ** 2 / parts)) * math.sqrt(sum(variances)) if parts else 0.0


def _half_of_runs(groups: Sequence[Sequence[float]], level: float) -> float:
    """The same of independent runs of one job, which spread correlation: few of them are pooled (Student, Biometrika 6, 1908)."""
    freedom = sum(len(runs) - 1 for runs in groups)
    variance = sum(statistics.variance(runs) * (len(runs) - 1) for runs in groups) / freedom
    return student(level, freedom) * math.sqrt(variance * sum(1 / len(runs) for runs in groups))


def _inflation(blocks: Sequence[float]) -> float:
    """Return the factor by which autocorrelation increases the variance of the mean. Few blocks show about 1/n too little correlation."""
    middle = statistics.fmean(blocks)
    apart = [block - middle for block in blocks]
    total = sum(value**2 for value in apart)
    correlation = sum(a * b for a, b in itertools.pairwise(apart)) / total if total else 0.0
    correlation = min(0.9, max(0.0, correlation + 1 / len(blocks)))
    return (1 + correlation) / (1 - correlation)


@functools.lru_cache(maxsize=1000)
def student(level: float, freedom: int) -> float:
    """Return what Student's t exceeds in either direction with a probability of ``level`` (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    least, most = 0.0, math.pi / 2
    for _ in range(60):
        angle = (least + most) / 2
        if _within(angle, max(1, freedom)) < 1 - level:
            least = angle
        else:
            most = angle
    return math.tan(least) * math.sqrt(max(1, freedom))


def _within(angle: float, freedom: int) -> float:
    is_odd = freedom % 2
    term = total = (math.cos(angle) if is_odd else 1.0) if freedom > 1 else 0.0
    for number in range(2 + is_odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (number - 1) / number
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
