"""Gate "peers": a node beside the others of equal hardware in the same night, without any history.

Identical GPUs differ by 8 %, and up to 22 %, in one published cluster (arXiv 2208.11035): an odd node is a suspect (warn),
never a failure. The spread is that of the other nodes (leave-one-out), or the one measured for the fleet if it is wider.

Arrays are nodes x metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from . import robust

if TYPE_CHECKING:
    from .nights import Flags, Floats

LEAST_PEERS = 5
#: Where the limit is wider, in logarithms, that a node is within it says nothing.
WIDEST = 0.5
MINIMUM_RATIO = 0.02
#: Chance of a false suspect per metric and node-night.
FALSE_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peers:
    """nodes x metrics. ``excess``: beside the median of the others; ``limit`` is NaN with fewer than five peers."""

    excess: Floats
    limit: Floats
    count: Floats

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.excess) & ~np.isnan(self.limit)

    @property
    def suspects(self) -> Flags:
        return self.excess > self.limit


def judge(slowness: Floats, fleet_sigma: float = 0.0) -> Peers:
    """``slowness``: tonight's medians. ``fleet_sigma``: the spread between nodes that earlier nights showed, 0 if unknown."""
    import numpy as np

    excess = slowness - robust.median_of_others(slowness)
    measured = ~np.isnan(slowness)
    count = np.sum(measured, axis=0) - measured
    limits = np.full(slowness.shape, np.nan)
    for node in range(len(slowness)):
        others = np.delete(slowness, node, axis=0)
        # More than half of the peers may be equal, as on a metric with few different values.
        apart = others - robust.median(others)
        half = robust.MAD_TO_SIGMA * robust.median(np.abs(apart))
        spread = np.where(half > 0, half, robust.body(apart))
        limits[node] = np.fmax(spread, fleet_sigma)
    # The MAD of n normal values has 37 % of the efficiency of the standard deviation.
    factors = np.array([robust.limit(FALSE_RATE, 0.37 * max(int(n), 1)) for n in count.ravel()]).reshape(count.shape)
    limits = np.where(count >= LEAST_PEERS, np.fmax(factors * limits, MINIMUM_RATIO), np.nan)
    return Peers(excess=excess, limit=limits, count=count)
