"""Medians, spreads and limits that a few bad values do not move. NaN means: not measured. Axis 0 is reduced."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nights import Floats

#: MAD to standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826


def median(values: Floats, axis: int = 0) -> Floats:
    """The median of the values that are not NaN; NaN if there is none. numpy's nanmedian loops in Python along an axis."""
    import numpy as np

    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    ordered = np.sort(values, axis=axis)
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    result: Floats = np.squeeze((low + high) / 2, axis)
    return result


def body(values: Floats) -> Floats:
    """The standard deviation about zero along axis 0 of the values cut at 3 robust sigma (Huber's proposal 2, 1964).

    Where more than half of the values are 0, as on a metric with few different values, nothing is cut.
    """
    import numpy as np

    absolute = np.abs(values)
    middle = median(absolute)
    cut = np.minimum(absolute, np.where(middle > 0, 3 * MAD_TO_SIGMA * middle, np.inf))
    # E[min(|x|, 3)^2] of a standard normal is 0.995.
    return np.sqrt(nanmean(cut**2) / 0.995)


def nanmean(values: Floats) -> Floats:
    import numpy as np

    count = np.sum(~np.isnan(values), axis=0)
    result: Floats = np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan)
    return result


def quantile(values: Floats, share: float) -> Floats:
    """The smallest value that is not below ``share`` of the values (no interpolation); NaN if there is none."""
    import numpy as np

    if not len(values):
        return np.full(values.shape[1:], np.nan)
    ordered = np.sort(values, axis=0)
    count = np.sum(~np.isnan(values), axis=0, keepdims=True)
    index = np.clip(np.ceil(share * count).astype(int) - 1, 0, values.shape[0] - 1)
    result: Floats = np.take_along_axis(ordered, index, 0)[0]
    return result


def median_of_others(values: Floats) -> Floats:
    """Along axis 0: for each entry the median of all others that are not NaN."""
    import numpy as np

    order = np.argsort(values, axis=0)  # NaN comes last
    rank = np.argsort(order, axis=0)
    ordered = np.take_along_axis(values, order, 0)
    others = np.sum(~np.isnan(values), axis=0, keepdims=True) - ~np.isnan(values)

    def at(index: Any) -> Floats:
        """The entry of that rank once the own entry is left out."""
        place = np.clip(index + (index >= rank), 0, values.shape[0] - 1)
        return np.take_along_axis(ordered, place, 0)

    middle = (at((others - 1) // 2) + at(others // 2)) / 2
    return np.where(others > 0, middle, np.nan)


def limit(false_rate: float, freedom: float) -> float:
    """How many estimated sigmas a normal value exceeds with ``false_rate``, where sigma has ``freedom`` degrees of freedom.

    The quantile of Student's t by its expansion in 1/freedom, Abramowitz and Stegun 26.7.5, to second order.
    """
    z = NormalDist().inv_cdf(1 - false_rate)
    if freedom <= 0:
        return math.inf
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
