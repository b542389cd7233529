"""Gate "relative": a node against its own reference and the day's effect; one offence warns, a confirmed second one fails.

An offence is a night that is worse by more than max(3 MAD, a minimum ratio). 2 % of sound nights are, so that an offence
counts only if the nights together are beyond chance: the score of a step that began up to three nights ago (``levels.py``),
for noise with the fleet's own correlation from night to night. It warns beyond WARN_RATE; the second within three nights
fails beyond FALSE_RATE.

Arrays are nights x nodes x metrics; the last night is the one that is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from . import levels, robust
from .deviations import GAP

if TYPE_CHECKING:
    from .nights import Flags, Floats

#: 2 sigma are 3 MAD.
OFFENCE_SIGMAS = 2.0
MINIMUM_RATIO = 0.01
#: Chance of a false warning and of a false failure per metric and node-night, for normal noise. Three gates and 20 metrics
#: share 1e-4 false failures per node-night, and steps at reboots make tails that are several times heavier.
WARN_RATE, FALSE_RATE = 4e-4, 3e-7
#: The same for a metric with few different values, such as a clock rate in steps of 0.1 GHz, by the share of nights that were as bad.
GRID_WARN_RATE, GRID_FALSE_RATE = 1e-2, 3e-5
#: Deviations that differ by less are equal, but for rounding.
_EQUAL = 1e-9
#: Nights whose deviations give the spread, and the least of them.
SPREAD_NIGHTS, LEAST_SPREAD_NIGHTS = 40, 8
#: Nights of the joint evidence.
JOINT_NIGHTS = 40
#: No night counts for more than this, so that one odd night fails nothing.
CUT_SIGMAS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relative:
    """Of the last night, nodes x metrics. ``offences``: the last three nights, the judged one last.

    ``joint``: the score of the best step of one to three nights; ``lasting``: of two or three; ``length``: of that step.
    ``chance``: of so many nights of three that are at least as bad as the best of the offences; 0 for metrics whose values vary
    from night to night, whose scores say it.
    """

    excess: Floats
    spread: Floats
    limit: Floats
    offences: Flags
    joint: Floats
    lasting: Floats
    length: Floats
    chance: Floats
    warn_limit: float
    fail_limit: float

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.excess) & ~np.isnan(self.limit)

    @property
    def warns(self) -> Flags:
        result: Flags = self.offences[-1] & (self.joint >= self.warn_limit) & (self.chance <= GRID_WARN_RATE)
        return result

    @property
    def fails(self) -> Flags:
        import numpy as np

        repeated = self.offences[-1] & (np.sum(self.offences, axis=0) >= 2)
        result: Flags = repeated & (self.lasting >= self.fail_limit) & (self.chance <= GRID_FALSE_RATE)
        return result


def judge(deviations: Floats, series: Floats, minimum_ratio: float = MINIMUM_RATIO) -> Relative:
    """``deviations`` and ``series``: from :func:`deviations.deviations` and :func:`deviations.long_deviations`.

    The spread is that of the fleet, learned up to three nights back.
    """
    import numpy as np

    recent = np.concatenate([np.full((GAP - 1, *deviations.shape[1:]), np.nan), deviations])[-GAP:]
    history = deviations[:-GAP][-SPREAD_NIGHTS:]
    enough = np.sum(~np.isnan(history).all(axis=1), axis=0) >= LEAST_SPREAD_NIGHTS
    spread = np.where(enough, np.maximum(node_spread(history), 1e-12), np.nan)
    limit = np.fmax(OFFENCE_SIGMAS * spread, minimum_ratio)
    limit = np.where(np.isnan(spread), np.nan, limit)
    offences = recent > limit
    window = series[-JOINT_NIGHTS:]
    steps = [levels.step(len(window), length) for length in range(1, GAP + 1)]
    evidence = levels.scores(window, steps, *levels.noise(window[:-GAP]), cut=CUT_SIGMAS)[0]
    warn_limit, fail_limit = (levels.limit(rate, window.shape[1], len(window)) for rate in (WARN_RATE, FALSE_RATE))
    return Relative(
        excess=recent[-1], spread=spread, limit=limit, offences=offences, warn_limit=warn_limit, fail_limit=fail_limit,
        joint=np.fmax.reduce(evidence, axis=0), lasting=np.fmax.reduce(evidence[1:], axis=0),
        length=2 + np.argmax(np.nan_to_num(evidence[1:]), axis=0),
        chance=np.where(_has_few_values(window[:-GAP]), _chance(recent, offences, history), 0.0),
    )  # fmt: skip


def _has_few_values(series: Floats) -> Flags:
    """By metric: whether more than half of the nights have the value of the night before."""
    import numpy as np

    changes = np.abs(np.diff(series, axis=0)).reshape(-1, series.shape[-1])
    result: Flags = robust.median(changes) <= _EQUAL
    return result


def _chance(recent: Floats, offences: Flags, history: Floats) -> Floats:
    """nodes x metrics: binomial, by the share of the fleet's earlier nights that were as bad (Jeffreys' estimate)."""
    import numpy as np

    level = np.min(np.where(offences, recent, np.inf), axis=0)
    as_bad = np.sum(history[:, :, None] >= level - _EQUAL, axis=(0, 1))
    share = (as_bad + 0.5) / (np.sum(~np.isnan(history), axis=(0, 1)) + 1)
    once, twice = 1 - (1 - share) ** 3, 3 * share**2 * (1 - share) + share**3
    count = np.sum(offences, axis=0)
    result: Floats = np.where(count >= 3, share**3, np.where(count == 2, twice, once))
    return result


def node_spread(history: Floats) -> Floats:
    """nodes x metrics: the spread of the fleet, or the node's own where that is wider by more than chance explains."""
    import numpy as np

    fleet = robust.sigma(history.reshape(-1, *history.shape[2:]))
    own = robust.sigma(history)
    count = np.maximum(np.sum(~np.isnan(history), axis=0), 1)
    # The standard error of a sigma from n values is 1/sqrt(2 n); neighbouring nights are correlated, so that n counts a third.
    noisier = own > fleet * (1 + 3 / np.sqrt(2 * count / 3))
    result: Floats = np.where(noisier, own, fleet)
    return result
