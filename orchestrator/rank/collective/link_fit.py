"""The line through measured transfer times: alpha seconds per message, beta seconds per byte. Pure, without torch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A time that is nearer to the line than this share of itself always counts.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Fit:
    """``alpha`` s + ``beta`` s/byte x bytes; ``r2`` of the weighted fit."""

    alpha: float
    beta: float
    r2: float


def line(points: Iterable[tuple[float, float]]) -> Fit:
    """Least squares of *relative* errors over (bytes, seconds), so that a small message counts as much as a large one.

    Sizes far off the line that most of them agree on are left out: a machine that was busy just then. An alpha below 0 has
    no meaning; the line goes through the origin then. Raises ValueError for fewer than two sizes.
    """
    given = [(n, t) for n, t in points if t > 0]
    if len({n for n, _ in given}) < 2:
        raise ValueError("a line needs two different sizes")
    alpha, beta = _least_absolute(given)
    off = [_off(one, alpha, beta) for one in given]
    limit = max(NEAR, 3 * statistics.median(off))
    near = [one for one, much in zip(given, off, strict=True) if much <= limit]
    return _least_squares(near if len({n for n, _ in near}) > 1 else given)


def _off(point: tuple[float, float], alpha: float, beta: float) -> float:
    """How far the line is from a point, as a share of the point's seconds."""
    return abs(alpha + beta * point[0] - point[1]) / point[1]


def _least_absolute(given: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Alpha and beta with the least sum of relative distances: such a line passes through two of the points."""
    pairs = itertools.combinations(given, 2)
    lines = [_through(one, other) for one, other in pairs if one[0] != other[0]]
    good = [one for one in lines if one[0] >= 0 and one[1] >= 0] or [(0.0, statistics.median(t / n for n, t in given))]
    return min(good, key=lambda one: math.fsum(_off(point, *one) for point in given))


def _through(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    beta = (other[1] - one[1]) / (other[0] - one[0])
    return one[1] - beta * one[0], beta


def _least_squares(points: Sequence[tuple[float, float]]) -> Fit:
    given = [(n, t, 1 / (t * t)) for n, t in points]
    total = math.fsum(w for _, _, w in given)
    mean_n = math.fsum(w * n for n, _, w in given) / total
    mean_t = math.fsum(w * t for _, t, w in given) / total
    spread = math.fsum(w * (n - mean_n) ** 2 for n, _, w in given)
    beta = math.fsum(w * (n - mean_n) * (t - mean_t) for n, t, w in given) / spread
    alpha = mean_t - beta * mean_n
    if alpha < 0:
        alpha, beta = 0.0, math.fsum(w * n * t for n, t, w in given) / math.fsum(w * n * n for n, _, w in given)
    beta = max(beta, 0.0)
    left = math.fsum(w * (t - alpha - beta * n) ** 2 for n, t, w in given)
    around = math.fsum(w * (t - mean_t) ** 2 for _, t, w in given)
    return Fit(alpha, beta, 1 - left / around if around else 1.0)


def distance(points: Iterable[tuple[float, float]], found: Fit) -> float:
    """How far a quarter of the points are from the line at least, as a share of their seconds."""
    return statistics.quantiles([_off(one, found.alpha, found.beta) for one in points], n=4, method="inclusive")[2]


def agreed(fits: Sequence[Fit]) -> Fit:
    """The one line that models use: medians over the pairs."""
    return Fit(*(statistics.median(getattr(one, name) for one in fits) for name in ("alpha", "beta", "r2")))


def rounds(world: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """All pairs, in rounds in which nobody is in two (the circle method for tournaments)."""
    ring = [*range(world), *([-1] if world % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        found.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if -1 not in pair)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(found)


def turns(world: int, *, flat: bool = True, together_from: int = 5) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Pairs that are probed at the same time: one by one in a small world, where there is time for it, and where pairs
    share uplinks (not ``flat``)."""
    every = rounds(world)
    return every if flat and world >= together_from else tuple((pair,) for turn in every for pair in turn)
