"""Counts of errors, drops and the like: often zero, so that ratios have no meaning. Tonight beside the usual range, every night."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..gates import deviations, robust
from ..gates.finding import Finding

if TYPE_CHECKING:
    from ..gates.nights import Floats, Panel

GATE = "counter"
#: Earlier nights with a value that a node needs. Its window and the gap before tonight are those of ``deviations``.
LEAST_NIGHTS = deviations.LEAST_NIGHTS
#: Chance of a false warning per metric and node-night, for events that come at random.
WARN_RATE = 4e-4
#: Values that are all zero, from which on a single count is too much: with fewer, one in as many may be usual.
MANY_ZEROS = 100
#: Up to this multiple of its greatest count a node is in its usual range, also where that is large: events come in bursts.
USUAL = 2.0


def judge(panel: Panel, fleet: Floats, node: str, minimum_absolute: float = 0.0) -> Finding | None:
    """A warning if a node counts more tonight than is usual; None if it does not, or if that is not known.

    A node that counted on every night of its window is left to the gates of ratios. ``fleet``: from :func:`past_counts`.
    """
    import numpy as np

    values = panel.latest(node)
    window = panel.values[: -deviations.GAP, panel.nodes.index(node)][-deviations.WINDOW :]
    nights = window[~np.isnan(window).all(axis=1)]
    if panel.metric.better != "lower" or len(nights) < LEAST_NIGHTS or not values or np.nanmin(nights) != 0:
        return None
    value, greatest = max(values), float(np.nanmax(nights))
    upper = limit(nights[~np.isnan(nights)], fleet)
    if value <= upper or value - greatest < minimum_absolute:
        return None
    zeros = int(np.sum(np.fmax.reduce(nights, axis=1) == 0))
    usual = f"0 on each of {zeros}" if not greatest else f"0 on {zeros}, and {greatest:g} at most on {len(nights)}"
    text = (
        f"{panel.metric.name} is {value:g} {panel.metric.unit}; it was {usual} earlier nights; the limit is {upper:g}"
    )
    return Finding(
        gate=GATE, outcome="warn", metric=panel.metric.name, node=node, text=f"{node}: {text}" if node else text
    )


def past_counts(panel: Panel) -> Floats:
    """All earlier values of the nodes that are mostly zero: others show nothing about those. Without the last nights: a count that
    began there is no part of its own reference.
    """
    import numpy as np

    by_node = np.moveaxis(panel.values[: -deviations.GAP], 1, -1).reshape(-1, len(panel.nodes))
    quiet: Floats = by_node[:, robust.median(by_node) == 0]
    return quiet[~np.isnan(quiet)]


def limit(own: Floats, fleet: Floats) -> float:
    """The greatest count that is usual for a node, from its own earlier counts and those of the fleet.

    Where nothing was counted a hundred times, every count is too much. Else events come at random: their number has a Poisson
    distribution, whose mean is the greatest own number, or the fleet's mean if that is more. An event is as great as all but
    the greatest tenth of the counts.
    """
    import numpy as np

    known = np.concatenate([own, fleet])
    counts = known[known > 0]
    if not len(counts) and len(known) >= MANY_ZEROS:
        return 0.0
    event, greatest = float(robust.quantile(counts, 0.9)) if len(counts) else 1.0, float(own.max())
    mean = max(greatest / event, -math.log1p(-(len(counts) + 1) / (len(known) + 2)))
    return max(USUAL * greatest, event * _poisson_limit(mean))


def _poisson_limit(mean: float) -> int:
    """The least number that is exceeded with a chance of WARN_RATE at most; of a large mean a little more than that."""
    if mean > 100:
        return math.ceil(mean + 4 * math.sqrt(mean))
    number, term = 0, math.exp(-mean)
    above = 1 - term
    while above > WARN_RATE:
        number += 1
        term *= mean / number
        above -= term
    return number
