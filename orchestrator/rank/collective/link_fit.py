"""Fits a line to transfer times: alpha seconds per message, beta seconds per byte. Pure, without torch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A time whose relative distance from the line is below this always counts.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Fit:
    """``alpha`` s + ``beta`` s/byte x bytes; ``r2`` of the weighted fit."""

    alpha: float
    beta: float
    r2: float


def line(points: Iterable[tuple[float, float]]) -> Fit:
    """Least squares of *relative* errors over (bytes, seconds), so that small messages count as much as large ones.

    Outliers from the line of the majority are left out: the machine was busy then. If alpha were below 0, the line goes through
    the origin. Raises ValueError for fewer than two sizes.
    """
    measured = [(n, t) for n, t in points if t > 0]
    if len({n for n, _ in measured}) < 2:
        raise ValueError("a line needs two different sizes")
    alpha, beta = _least_absolute(measured)
    off = [_off(point, alpha, beta) for point in measured]
    limit = max(NEAR, 3 * statistics.median(off))
    near = [point for point, deviation in zip(measured, off, strict=True) if deviation <= limit]
    return _least_squares(near if len({n for n, _ in near}) > 1 else measured)


def _off(point: tuple[float, float], alpha: float, beta: float) -> float:
    """The distance of a point from the line, as a share of the point's seconds."""
    return abs(alpha + beta * point[0] - point[1]) / point[1]


def _least_absolute(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Alpha and beta with the least sum of relative distances; that line passes through two of the points."""
    pairs = itertools.combinations(points, 2)
    lines = [_through(first, second) for first, second in pairs if first[0] != second[0]]
    good = [(alpha, beta) for alpha, beta in lines if alpha >= 0 and beta >= 0]
    candidates = good or [(0.0, statistics.median(t / n for n, t in points))]
    return min(candidates, key=lambda candidate: math.fsum(_off(point, *candidate) for point in points))


def _through(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    beta = (second[1] - first[1]) / (second[0] - first[0])
    return first[1] - beta * first[0], beta


def _least_squares(points: Sequence[tuple[float, float]]) -> Fit:
    weighted = [(n, t, 1 / (t * t)) for n, t in points]
    total = math.fsum(w for _, _, w in weighted)
    mean_n = math.fsum(w * n for n, _, w in weighted) / total
    mean_t = math.fsum(w * t for _, t, w in weighted) / total
    spread = math.fsum(w * (n - mean_n) ** 2 for n, _, w in weighted)
    beta = math.fsum(w * (n - mean_n) * (t - mean_t) for n, t, w in weighted) / spread
    alpha = mean_t - beta * mean_n
    if alpha < 0:
        alpha, beta = 0.0, math.fsum(w * n * t for n, t, w in weighted) / math.fsum(w * n * n for n, _, w in weighted)
    beta = max(beta, 0.0)
    residual = math.fsum(w * (t - alpha - beta * n) ** 2 for n, t, w in weighted)
    total_variance = math.fsum(w * (t - mean_t) ** 2 for _, t, w in weighted)
    return Fit(alpha, beta, 1 - residual / total_variance if total_variance else 1.0)


def distance(points: Iterable[tuple[float, float]], fit: Fit) -> float:
    """The third quartile of the points' distances from the line, as shares of their seconds."""
    return statistics.quantiles([_off(point, fit.alpha, fit.beta) for point in points], n=4, method="inclusive")[2]


def agreed(fits: Sequence[Fit]) -> Fit:
    """The line that the cost models use: medians over the pairs."""
    return Fit(*(statistics.median(getattr(fit, name) for fit in fits) for name in ("alpha", "beta", "r2")))


def rounds(world: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """All pairs, in rounds in which every rank is in at most one pair (the circle method for tournaments)."""
    ring = [*range(world), *([-1] if world % 2 else [])]
    result = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        result.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if -1 not in pair)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(result)


def turns(world: int, *, flat: bool = True, together_from: int = 5) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Pairs that are probed at the same time: one by one in a small world, and where pairs share uplinks (not ``flat``)."""
    every = rounds(world)
    return every if flat and world >= together_from else tuple((pair,) for turn in every for pair in turn)
