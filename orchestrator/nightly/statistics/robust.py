"""Medians and quantiles that a few bad values do not move, where NaN means: not measured; and quantiles of Student's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import ratio

if TYPE_CHECKING:
    from ..records import Floats

#: MAD to standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826


def median(values: Floats, axis: int = 0) -> Floats:
    """The median of the values that are not NaN; NaN if there is none. numpy's nanmedian loops in Python along an axis."""
    low, high = middles(values, axis)
    return (low + high) / 2


def middles(values: Floats, axis: int = 0) -> tuple[Floats, Floats]:
    """The two values in the middle of those that are not NaN: of an odd number twice the median. NaN if there is none."""
    import numpy as np

    if not values.shape[axis]:
        empty = np.full(np.delete(values.shape, axis), np.nan)
        return empty, empty
    ordered = np.sort(values, axis=axis)
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    return np.squeeze(low, axis), np.squeeze(high, axis)


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


def student(chance: float, freedom: Floats) -> Floats:
    """The value that a variable of Student's distribution exceeds with this chance."""
    import numpy as np

    rounded = np.minimum(np.floor(freedom), 200).astype(int)
    table = {number: ratio.student(2 * chance, number) for number in np.unique(rounded).tolist()}
    result: Floats = np.vectorize(table.__getitem__, otypes=[float])(rounded)
    return result
