"""How much worse a node was than it usually is, beside the fleet: its own offset and the day's effect are taken away.

Model: slowness = offset of the node + effect of the day + noise. Offsets are learned over a window of nights that ends
three nights back, so that a new defect is no part of its own reference. Both are fitted by medians in turns (Tukey's
median polish, Exploratory Data Analysis, 1977). The effect of a day is the centre of all *other* nodes.

Arrays are nights x nodes, with any further axes (metrics) behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import robust

if TYPE_CHECKING:
    from .nights import Floats

#: Nights that the reference is learned over, the nights between it and tonight, and the least of them with a value.
WINDOW, GAP, LEAST_NIGHTS = 20, 3, 8
#: With fewer other nodes, the day has no effect of its own, and stays part of the noise.
LEAST_OTHERS, MANY_OTHERS = 3, 6
#: Sigmas beyond which the excess of a node counts no more for the effect of a day.
HUBER = 1.5


def deviations(slowness: Floats) -> Floats:
    """Same shape: each night's excess over the reference that was known before it. NaN: no value, or no reference yet."""
    import numpy as np

    blank = np.full((WINDOW + GAP - 1, *slowness.shape[1:]), np.nan)
    padded = np.concatenate([blank, slowness])
    # windows[t] ends GAP nights before night t; its last axis is the time, which moves to the front.
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0)[: len(slowness)]
    history = np.moveaxis(windows, -1, 0)
    offset = _offsets(history)
    offset[np.sum(~np.isnan(history), axis=0) < LEAST_NIGHTS] = np.nan
    return without_day(slowness - offset)


def long_deviations(slowness: Floats) -> Floats:
    """Same shape: each night's excess over the node's median of all nights, beside the fleet. For changes long ago."""
    return without_day(slowness - _offsets(slowness[:, None])[0])


def without_day(excess: Floats) -> Floats:
    """The effect of each night (axis 0) is the centre of the other nodes (axis 1).

    From the median, one step of Huber's estimator (Annals of Mathematical Statistics 35, 1964), with the spread of all
    nights: of 7 normal values, its variance is 0.7 of the median's. Few nodes have their median: half of four may be slow.
    """
    import numpy as np

    others = np.sum(~np.isnan(excess), axis=1, keepdims=True) - 1
    of_others = np.moveaxis(robust.median_of_others(np.moveaxis(excess, 1, 0)), 0, 1)
    near = excess - np.expand_dims(robust.median(excess, axis=1), 1)
    spread = robust.MAD_TO_SIGMA * robust.median(np.abs(near).reshape(-1, *excess.shape[2:]))
    cut = np.nan_to_num(np.clip(near, -HUBER * spread, HUBER * spread))
    step = (np.sum(cut, axis=1, keepdims=True) - cut) / np.maximum(others, 1)
    day = np.where(others >= MANY_OTHERS, excess - near + step, of_others)
    return excess - np.where(others >= LEAST_OTHERS, day, 0.0)


def _offsets(history: Floats) -> Floats:
    """The offset of each node over axis 0. ``history``: time x (nights) x nodes x ...; the nodes are axis 2."""
    import numpy as np

    offset = robust.median(history)
    if history.shape[2] <= LEAST_OTHERS:
        return offset
    day = robust.median(history - offset, axis=2)
    return robust.median(history - np.expand_dims(day, 2))
