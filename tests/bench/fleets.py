"""Synthetic fleets: nodes with offsets, correlated nights, effects of the day, two modes, reboots, missing nights, bad samples.

Log-slowness is built up, so that 0.05 is 5 %; :func:`fleet` gives nights x nodes x metrics x repeats. What issue 12 leaves
open is stated in :class:`Noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["none", "step", "drift", "intermittent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """``nights_sigma``: of AR(1) itself (not of its innovations). Reboots: once in 30 node-nights, each shifts every metric.

    Of 20 metrics, one has two modes by sample and one by night; 30 % of them are ``mode`` worse.
    """

    node: float = 0.03
    nights_sigma: float = 0.01
    correlation: float = 0.5
    day: float = 0.01
    repeat: float = 0.005
    mode: float = 0.03
    mode_share: float = 0.3
    reboot_rate: float = 1 / 30
    reboot: float = 0.005
    missing: float = 0.1
    bad_share: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """On node 0 (nodes are exchangeable), on the first ``metrics`` of a shuffled list, from ``night`` on."""

    kind: Kind = "none"
    night: int = 0
    metrics: int = 1
    size: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """``slowness``: nights x nodes x metrics x repeats. ``affected``: the metrics with the defect."""

    slowness: Floats
    affected: tuple[int, ...]


def fleet(
    seed: int, defect: Defect | None = None, *, noise: Noise | None = None, nodes: int | None = None, nights: int = 60,
    metrics: int = 20, repeats: int = 5,
) -> Fleet:  # fmt: skip
    """8 to 64 nodes by the seed, unless ``nodes`` says how many. The noise of a seed is the same for every defect."""
    noise, defect = noise or Noise(), defect or Defect()
    rng = np.random.default_rng(seed)
    nodes = nodes or int(rng.integers(8, 65))
    shape = (nights, nodes, metrics)
    level = rng.normal(0, noise.node, shape[1:]) + rng.normal(0, noise.day, (nights, 1, metrics))
    level = level + _correlated(rng, shape, noise) + _reboots(rng, shape, noise)
    level[..., 1] += np.where(rng.random(shape[:2]) < noise.mode_share, noise.mode, 0)
    values = level[..., None] + rng.normal(0, noise.repeat, (*shape, repeats))
    values[..., 0, :] += np.where(rng.random((nights, nodes, repeats)) < noise.mode_share, noise.mode, 0)
    bad = rng.random(values.shape) < noise.bad_share
    values += np.where(bad, _bad(rng, values.shape), 0)
    missing = rng.random(shape[:2]) < noise.missing
    affected = tuple(int(metric) for metric in rng.permutation(metrics)[: defect.metrics])
    _apply(rng, values, defect, affected)
    values[missing] = np.nan
    return Fleet(slowness=values, affected=affected)


def _correlated(rng: np.random.Generator, shape: tuple[int, ...], noise: Noise) -> Floats:
    rows = [rng.normal(0, noise.nights_sigma, shape[1:])]
    innovation = noise.nights_sigma * np.sqrt(1 - noise.correlation**2)
    for _ in range(shape[0] - 1):
        rows.append(noise.correlation * rows[-1] + rng.normal(0, innovation, shape[1:]))
    return np.stack(rows)


def _reboots(rng: np.random.Generator, shape: tuple[int, ...], noise: Noise) -> Floats:
    boots = rng.random(shape[:2]) < noise.reboot_rate
    result: Floats = np.cumsum(np.where(boots[..., None], rng.normal(0, noise.reboot, shape), 0.0), axis=0)
    return result


def _bad(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """10 to 30 % worse."""
    return np.log1p(rng.uniform(0.1, 0.3, shape))


def _apply(rng: np.random.Generator, values: Floats, defect: Defect, affected: tuple[int, ...]) -> None:
    nights, repeats = values.shape[0] - defect.night, values.shape[-1]
    for metric in affected:
        part = values[defect.night :, 0, metric]
        if defect.kind == "step":
            part += np.log1p(defect.size)
        elif defect.kind == "drift":
            part += defect.size * np.arange(1, nights + 1)[:, None]
        elif defect.kind == "intermittent":
            chosen = rng.integers(0, repeats, nights)
            part[np.arange(nights), chosen] += _bad(rng, (nights,))
