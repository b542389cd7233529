"""Gate "intermittent": a node some of whose repeats are bad, while the median of the night is good.

A repeat is bad if it is worse than the median of its night by more than the repeats of this fleet usually differ. Single
bad repeats are normal, so that a node is judged by its nights with one: their number in the last five nights, against the
share of such nights in the fleet (binomial).

Arrays are nights x nodes x metrics x repeats; the last night is the one that is judged.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from . import robust

if TYPE_CHECKING:
    from .nights import Flags, Floats

RECENT = 5
#: The chance that warns, and the one that fails, per metric and node-night. A node that is bad on all of the nights may be so by a
#: greater chance: of an intermittent part, four nights of four say more than four of five.
WARN_RATE, FALSE_RATE, FALSE_RATE_OF_ALL = 2e-4, 5e-6, 2e-5
SIGMAS, MINIMUM_RATIO, LEAST_REPEATS, LEAST_NIGHTS = 6.0, 0.02, 3, 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intermittent:
    """nodes x metrics. ``chance``: that a node of this fleet has as many bad nights; ``usual``: the share of bad nights."""

    bad: Floats
    measured: Floats
    usual: Floats
    chance: Floats
    limit: Floats
    is_bad_tonight: Flags

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.chance)

    @property
    def fails(self) -> Flags:
        import numpy as np

        rate = np.where(self.bad == self.measured, FALSE_RATE_OF_ALL, FALSE_RATE)
        result: Flags = self.is_bad_tonight & (self.bad >= 2) & (self.chance <= rate)
        return result

    @property
    def warns(self) -> Flags:
        result: Flags = self.is_bad_tonight & (self.bad >= 2) & (self.chance <= WARN_RATE)
        return result


def judge(slowness: Floats) -> Intermittent:
    """The bad nights of each node among the last five. Chance is NaN where the fleet's share or tonight is not known."""
    import numpy as np

    excess = slowness - np.expand_dims(robust.median(slowness, axis=-1), -1)
    excess[np.sum(~np.isnan(slowness), axis=-1) < LEAST_REPEATS] = np.nan
    worst = np.fmax.reduce(excess, axis=-1)
    past, recent = excess[:-RECENT], worst[-RECENT:]
    limit = _limit(past)
    measured = ~np.isnan(worst)
    bad = np.where(measured, worst > limit, False)
    nights = np.sum(measured[:-RECENT], axis=(0, 1))
    usual = (np.sum(bad[:-RECENT], axis=(0, 1)) + 0.5) / (nights + 1)
    count, total = np.sum(bad[-RECENT:], axis=0), np.sum(~np.isnan(recent), axis=0)
    chance = np.vectorize(_tail, otypes=[float])(count, total, np.broadcast_to(usual, count.shape))
    known = (nights >= LEAST_NIGHTS) & measured[-1]
    return Intermittent(
        bad=count, measured=total, usual=usual, limit=limit, is_bad_tonight=bad[-1], chance=np.where(known, chance, np.nan)
    )  # fmt: skip


@functools.lru_cache(maxsize=10_000)
def _tail(successes: int, trials: int, rate: float) -> float:
    return robust.binomial_tail(successes, trials, rate)


def _limit(excess: Floats) -> Floats:
    """By metric: 6 sigma of the repeats about their median, or the worst 1.5 % of them where repeats have two modes."""
    import numpy as np

    pooled = np.moveaxis(excess, -1, 0).reshape(-1, excess.shape[-2])
    if not len(pooled):
        return np.full(excess.shape[-2], np.nan)
    spread = robust.MAD_TO_SIGMA * robust.median(np.abs(pooled))
    return np.fmax(np.fmax(SIGMAS * spread, robust.quantile(pooled, 0.985)), MINIMUM_RATIO)
