"""Seeded fleets of nights for the judge: noise as measured on clusters, and defects in one node or in all.

A night's value of a node and metric has half of its variance from night to night (normal, correlated by 0.5), and half between three
passes (Student's t with 3 degrees of freedom), of which it is the median. A second measurement has new passes of the same night.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.nightly.statistics import night_statistics

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: The coefficient of variation, the least change, the usual spread and the difference of peers of the 20 metrics, by class.
CLASSES = ((14, 0.01, 0.05, 0.01, 0.03), (4, 0.03, 0.05, 0.03, 0.04), (2, 0.15, 0.30, 0.15, 0.15))
GEMM, NETWORK = 0, 14
COUNT = sum(number for number, *_ in CLASSES)
CV, LEAST, SPREAD, PEERS = np.array([row for number, *row in CLASSES for _ in range(number)]).T
PASSES, OFFSET, MISSING, CORRELATION = 3, 0.028, 0.02, 0.5


def fleet(
    seed: int, fleets: int, nodes: int, nights: int, *, defect: Callable[[Floats], None] | None = None, scale: float = 1.0,
    passes: float = 0.5,
) -> night_statistics.Nights:  # fmt: skip
    """Fleets side by side: their metrics are columns. ``defect`` adds to the slowness, nights x nodes x fleets x metrics; ``scale``: of
    all noise; ``passes``: the variance of a pass, as a share.
    """
    rng = np.random.default_rng(seed)
    cv = scale * CV
    shape = nights, nodes, fleets, len(cv)
    between = np.empty(shape)
    between[0] = rng.normal(size=shape[1:])
    for night in range(1, nights):
        between[night] = CORRELATION * between[night - 1] + np.sqrt(1 - CORRELATION**2) * rng.normal(size=shape[1:])
    level = OFFSET * rng.normal(size=shape[1:]) + between * cv * np.sqrt(0.5)
    weekday = rng.normal(size=(7, fleets, len(cv))) * cv * 0.5
    level += weekday[np.arange(nights) % 7][:, None]
    if defect:
        defect(level)
    first, again = (
        level[..., None] + cv[:, None] * np.sqrt(passes / 3) * rng.standard_t(3, size=(*shape, PASSES))
        for _ in range(2)
    )
    gone = rng.random(shape[:3]) < MISSING
    values, second = np.median(first, axis=-1), np.median(again, axis=-1)
    values[gone] = np.nan
    flat = nights, nodes, fleets * len(cv)
    return night_statistics.Nights(
        values=values.reshape(flat), again=second.reshape(flat), passes=night_statistics.noise(first.reshape(*flat, PASSES)),
        levels=np.zeros(flat, dtype=bool), apart=np.zeros(nodes, dtype=bool), least=np.tile(LEAST, fleets),
        labels=[f"n{node}" for node in range(nodes)], spread=np.tile(SPREAD, fleets), peers=np.tile(PEERS, fleets), figures=nodes * COUNT,
    )  # fmt: skip


def step(size: float, begin: int, metric: int = GEMM, node: int | None = 0, every: int = 1) -> Callable[[Floats], None]:
    """From night ``begin`` on a node, or all, are slower by ``size``: ln(1 / (1 - 0.2)) for a rate that is 20 % lower."""

    def add(level: Floats) -> None:
        level[begin::every, slice(None) if node is None else node, :, metric] += np.log(1 / (1 - size))

    return add


def slide(size: float, begin: int) -> Callable[[Floats], None]:
    def add(level: Floats) -> None:
        nights = np.arange(1, len(level) - begin + 1)
        level[begin:, 0, :, GEMM] += (size * nights)[:, None]

    return add


@dataclass(frozen=True, kw_only=True)
class Naming:
    """By fleet: the defect was named (warned or failed), failed, and something else was named."""

    named: Flags
    failed: Flags
    others: Flags


def find(
    seed: int, fleets: int, nodes: int, earlier: int, within: int, defect: Callable[[Floats], None], metric: int = GEMM,
    is_common: bool = False,
) -> Naming:  # fmt: skip
    """A defect of node 0, or common to all nodes, that begins after so many nights."""
    history = fleet(seed, fleets, nodes, earlier + within, defect=defect)
    named, failed, others = (np.zeros(fleets, dtype=bool) for _ in range(3))
    adjusted: list[Floats] = []
    for night, verdict in enumerate(night_statistics.replay(history)):
        adjusted.append(history.values[night] - verdict.day)
        if night < earlier:
            continue
        fails, warns = (
            flags.reshape(nodes, fleets, COUNT)[..., metric]
            for flags in (verdict.fails, verdict.warns | slides(history, adjusted, verdict))
        )
        common, common_fails = (
            flags.reshape(fleets, COUNT)[:, metric] for flags in (verdict.fleet_warns, verdict.fleet_fails)
        )
        named |= common if is_common else fails[0] | warns[0]
        failed |= common_fails if is_common else fails[0]
        others |= (fails | warns).any(axis=0) if is_common else (fails | warns)[1:].any(axis=0) | common
    return Naming(named=named, failed=failed, others=others)


def slides(history: night_statistics.Nights, adjusted: list[Floats], verdict: night_statistics.Verdict) -> Flags:
    limit = night_statistics.slide_limit(history, verdict)
    return night_statistics.slides(np.array(adjusted[-night_statistics.SLIDE_NIGHTS :]), limit)[1]


@dataclass(frozen=True, kw_only=True)
class Clean:
    """Node-nights, and how many of them failed or warned; a night whose nodes failed together counts for each of them."""

    node_nights: int
    failed: int
    warned: int

    def upper(self, count: int) -> float:
        """The upper end of the interval of 95 % of a rate: clusters of failures in a row are wider than Poisson's."""
        return float(count + 1.645 * np.sqrt(count + 1) + 1.35) / self.node_nights


def judge_clean(
    seed: int, fleets: int, nodes: int, nights: int, *, defect: Callable[[Floats], None] | None = None, level: int | None = None,
    scale: float = 1.0, passes: float = 0.5,
) -> Clean:  # fmt: skip
    """``level``: the night on which a new level was accepted for all nodes; the nights before it do not count."""
    history = fleet(seed, fleets, nodes, nights, defect=defect, scale=scale, passes=passes)
    if level is not None:
        history.levels[level] = True
    failed = warned = 0
    adjusted: list[Floats] = []
    latency = np.tile(np.arange(COUNT) >= COUNT - CLASSES[-1][0], fleets)  # at most a warning
    for night, verdict in enumerate(night_statistics.replay(history)):
        adjusted.append(history.values[night] - verdict.day)
        if level is not None and night <= level:
            adjusted.clear()
            continue
        fails = (verdict.fails | verdict.fleet_fails) & ~latency
        warns = verdict.fails | verdict.warns | verdict.fleet_warns | slides(history, adjusted, verdict)
        failed, warned = (
            count + int(flags.reshape(nodes, fleets, COUNT).any(axis=2).sum())
            for count, flags in ((failed, fails), (warned, warns))
        )
    return Clean(
        node_nights=fleets * nodes * (nights - (0 if level is None else level + 1)), failed=failed, warned=warned
    )
