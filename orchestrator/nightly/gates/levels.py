"""Has the level of a node changed in a given shape (a step, a ramp)? Generalised least squares for AR(1) noise.

Each value is replaced by its innovation, the part that the value measured before it does not predict (Cochrane and Orcutt,
JASA 44, 1949, with gaps: after g nights the correlation is rho^g). The innovations are compared with those of the
shape, the node's constant level taken out. The result is in units of its standard error.

Arrays are nights x nodes x metrics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import robust

if TYPE_CHECKING:
    from .nights import Floats


def step(nights: int, length: int) -> Floats:
    """0, and 1 on the last ``length`` nights."""
    import numpy as np

    return (np.arange(nights) >= nights - length).astype(float)


def ramp(nights: int, length: int) -> Floats:
    """0, then 1 more each night, to 1 on the last."""
    import numpy as np

    return np.maximum(np.arange(nights) - (nights - length - 1), 0.0) / length


def noise(series: Floats) -> tuple[Floats, Floats]:
    """By metric: sigma and correlation of AR(1), from differences over one and two nights, which levels do not disturb.

    For AR(1) the variance of a difference over k nights is 2 sigma^2 (1 - rho^k), so that the ratio of two is 1 + rho.
    """
    import numpy as np

    metrics = series.shape[-1]
    first, second = (robust.sigma((series[lag:] - series[:-lag]).reshape(-1, metrics)) ** 2 for lag in (1, 2))
    correlation = np.clip(np.nan_to_num(second / np.maximum(first, 1e-30) - 1), 0.0, 0.9)
    return np.maximum(np.sqrt(first / (2 * (1 - correlation))), 1e-9), correlation


def scores(
    series: Floats, shapes: list[Floats], sigma: Floats, correlation: Floats, cut: float = math.inf
) -> tuple[Floats, Floats]:
    """shapes x nodes x metrics: the score of each shape, and the size of the change. NaN where the last night has no value.

    ``cut``: for the score, innovations count up to so many sigmas (Huber, 1964), so that a few odd nights make no lasting
    change. The size of the change is that of all of them: cut, a step of 10 % would be reported as 2 %.
    """
    import numpy as np

    measured = ~np.isnan(series)
    index = np.where(measured, np.arange(len(series))[:, None, None], -1)
    last = np.concatenate([np.full((1, *series.shape[1:]), -1), np.maximum.accumulate(index, axis=0)[:-1]])
    carry = np.where(last >= 0, correlation ** (np.arange(len(series))[:, None, None] - last), 0.0)
    weight = np.where(measured, 1 / np.sqrt(1 - carry**2), 0.0)
    filled = np.nan_to_num(series)

    def innovations(values: Floats) -> Floats:
        return weight * (values - carry * np.take_along_axis(values, np.maximum(last, 0), axis=0))

    whole = innovations(filled)
    observed = np.clip(whole, -cut * sigma, cut * sigma)
    constant = innovations(np.ones_like(series))
    total = np.maximum(np.sum(constant**2, axis=0), 1e-30)
    level, whole_level = (np.sum(constant * values, axis=0) / total for values in (observed, whole))
    results = []
    for shape in shapes:
        part = innovations(np.broadcast_to(shape[:, None, None], series.shape))
        overlap = np.sum(part * constant, axis=0)
        information = np.sum(part**2, axis=0) - overlap**2 / total
        usable = measured[-1] & (information > 1e-6)
        product = np.sum(part * observed, axis=0) - overlap * level
        change = np.sum(part * whole, axis=0) - overlap * whole_level
        divisor = np.where(usable, information, np.nan)
        results.append((product / np.sqrt(divisor) / sigma, change / divisor))
    return np.stack([score for score, _ in results]), np.stack([change for _, change in results])
