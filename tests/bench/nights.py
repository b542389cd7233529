"""Seeded fleets of nights for the judge: noise as measured on clusters, and defects in one node or in all.

A night's value of a node and metric has half of its variance from night to night (normal, correlated by 0.5), and half between three
passes (Student's t with 3 degrees of freedom), of which it is the median. A second measurement has new passes of the same night.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orchestrator.nightly import judge

Floats = NDArray[np.float64]
#: The coefficient of variation, the least change, the usual spread and the difference of peers of the 20 metrics, by class.
CLASSES = ((14, 0.01, 0.05, 0.01, 0.03), (4, 0.03, 0.05, 0.03, 0.04), (2, 0.15, 0.30, 0.15, 0.15))
GEMM, NETWORK = 0, 14
COUNT = sum(number for number, *_ in CLASSES)
CV, LEAST, SPREAD, PEERS = np.array([row for number, *row in CLASSES for _ in range(number)]).T
PASSES, OFFSET, MISSING, CORRELATION = 3, 0.028, 0.02, 0.5


def fleet(
    seed: int, fleets: int, nodes: int, nights: int, *, defect: Callable[[Floats], None] | None = None, columns: slice = slice(None),
    scale: float = 1.0,
) -> judge.Nights:  # fmt: skip
    """Fleets side by side: their metrics are columns. ``defect`` adds to the slowness, nights x nodes x fleets x metrics."""
    rng = np.random.default_rng(seed)
    cv = scale * CV[columns]
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
    first, again = (level[..., None] + cv[:, None] * np.sqrt(0.5 / 3) * rng.standard_t(3, size=(*shape, PASSES)) for _ in range(2))
    gone = rng.random(shape[:3]) < MISSING
    values, second = np.median(first, axis=-1), np.median(again, axis=-1)
    values[gone] = np.nan
    flat = nights, nodes, fleets * len(cv)
    return judge.Nights(
        values=values.reshape(flat), again=second.reshape(flat), passes=judge.noise(first.reshape(*flat, PASSES)), apart=np.zeros(nodes, dtype=bool),
        levels=np.zeros(flat, dtype=bool), least=np.tile(LEAST[columns], fleets), spread=np.tile(SPREAD[columns], fleets),
        peers=np.tile(PEERS[columns], fleets), figures=nodes * COUNT,
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
