"""Has the level of a node changed in a given shape (a step, a ramp)? Generalised least squares by a Kalman filter.

Model: value = level + noise; the noise is AR(1) from night to night, and the level wanders slowly, as it does where nodes are
rebooted (the local level model: Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989, chapter 4). The
filter turns a series into innovations: what the nights before do not predict. The same filter turns the shape into what
it adds to each innovation, so that the score is the likelihood ratio test of the shape (de Jong and Penzer, Diagnosing
Shocks in Time Series, JASA 93, 1998), in units of its standard error. Missing nights have no innovation.

Arrays are nights x nodes x metrics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import robust

if TYPE_CHECKING:
    from .nights import Floats

#: Variance that the level gains per night, and its variance before the first night, in units of the noise's variance.
WANDER, UNKNOWN_LEVEL = 1 / 120, 1e4
#: Nights over which the correlation has faded.
WEEK = (5, 6, 7)


def step(nights: int, length: int) -> Floats:
    """0, and 1 on the last ``length`` nights."""
    import numpy as np

    return (np.arange(nights) >= nights - length).astype(float)


def ramp(nights: int, length: int) -> Floats:
    """0, then 1 more each night, to 1 on the last."""
    import numpy as np

    return np.maximum(np.arange(nights) - (nights - length - 1), 0.0) / length


def noise(series: Floats) -> tuple[Floats, Floats]:
    """By metric: sigma and correlation of AR(1), from differences between nights, which the levels of nodes do not disturb.

    For AR(1) the variance of a difference over k nights is 2 sigma^2 (1 - rho^k): over a week about 2 sigma^2.
    """
    import numpy as np

    def variance(lag: int) -> Floats:
        return robust.body((series[lag:] - series[:-lag]).reshape(-1, series.shape[-1])) ** 2 / 2

    next_night, *week = (np.maximum(variance(lag), 1e-18) for lag in (1, *WEEK))
    # Over a short history the week is poorly known, or not at all; it is never calmer than two nights.
    whole = np.fmax(np.mean(week, axis=0), next_night)
    return np.sqrt(whole), np.nan_to_num(np.clip(1 - next_night / whole, 0.0, 0.9))


def scores(
    series: Floats, shapes: list[Floats], sigma: Floats, correlation: Floats, cut: float = math.inf
) -> tuple[Floats, Floats]:
    """shapes x nodes x metrics: the score of each shape, and the size of the change. NaN where the last night has no value.

    ``cut``: for the score, innovations count up to so many sigmas (Huber, 1964), so that a few odd nights make no lasting
    change. The size of the change is that of all of them: cut, a step of 10 % would be reported as 2 %.
    """
    import numpy as np

    innovations = _innovations(series, shapes, sigma, correlation)
    observed, parts = innovations[0], innovations[1:]
    information = np.sum(parts**2, axis=1)
    information = np.where(~np.isnan(series[-1]) & (information > 1e-6), information, np.nan)
    score = np.sum(parts * np.clip(observed, -cut, cut), axis=1) / np.sqrt(information)
    return score, np.sum(parts * observed, axis=1) * sigma / information


def _innovations(series: Floats, shapes: list[Floats], sigma: Floats, correlation: Floats) -> Floats:
    """1 + shapes x nights x nodes x metrics: of the series and of the shapes, in sigmas; 0 on nights without a value."""
    import numpy as np

    size = series.shape[1:]
    inputs = [np.nan_to_num(series) / sigma, *(np.broadcast_to(shape[:, None, None], series.shape) for shape in shapes)]
    result = np.zeros((len(inputs), *series.shape))
    noise_part, level = np.zeros((2, len(inputs), *size))
    # Variances of the predicted noise and level, and their covariance.
    of_noise, of_both, of_level = np.ones(size), np.zeros(size), np.full(size, UNKNOWN_LEVEL)
    for night, is_measured in enumerate(~np.isnan(series)):
        variance = of_noise + 2 * of_both + of_level
        error = np.stack([values[night] for values in inputs]) - noise_part - level
        result[:, night] = np.where(is_measured, error / np.sqrt(variance), 0.0)
        noise_gain = np.where(is_measured, (of_noise + of_both) / variance, 0.0)
        level_gain = np.where(is_measured, (of_both + of_level) / variance, 0.0)
        noise_part = correlation * (noise_part + noise_gain * error)
        level = level + level_gain * error
        of_noise = correlation**2 * (of_noise - noise_gain**2 * variance) + 1 - correlation**2
        of_both = correlation * (of_both - noise_gain * level_gain * variance)
        of_level = of_level - level_gain**2 * variance + WANDER
    return result


def limit(false_rate: float, nodes: int, nights: int) -> float:
    """The score that noise exceeds with ``false_rate``, whose sigma was learned from so many correlated node-nights."""
    return robust.limit(false_rate, nodes * nights / 5)
