"""Gate "relative": a node against its own reference and the day's effect; one offence warns, a confirmed second one fails.

An offence is a night that is worse by more than max(3.7 MAD, a minimum ratio). The second within three nights fails once
the nights together are beyond chance: the generalised least squares estimate of a step that began one or two nights ago,
for noise with the fleet's own correlation from night to night (AR(1)). Without that condition two offences of one
correlated excursion would fail: at 20 metrics, more than once in 1,000 node-nights.

Arrays are nights x nodes x metrics; the last night is the one that is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import levels, robust
from .deviations import GAP, LEAST_NIGHTS

if TYPE_CHECKING:
    from .nights import Flags, Floats

#: 2.5 sigma are 3.7 MAD.
OFFENCE_SIGMAS = 2.5
MINIMUM_RATIO = 0.01
#: Chance of a false failure per metric and node-night, for normal noise. 20 metrics and three gates share 1e-4, and steps
#: at reboots make tails that are several times heavier.
FALSE_RATE = 4e-7
#: Nights whose deviations give the spread, and the least of them.
SPREAD_NIGHTS, LEAST_SPREAD_NIGHTS = 40, 8
#: Nights of the joint evidence.
JOINT_NIGHTS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relative:
    """Of the last night, nodes x metrics. ``offences``: the last three nights, the judged one last; ``joint``: in sigmas."""

    excess: Floats
    spread: Floats
    limit: Floats
    offences: Flags
    joint: Floats
    joint_limit: Floats

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.excess) & ~np.isnan(self.limit)

    @property
    def warns(self) -> Flags:
        result: Flags = self.offences[-1]
        return result

    @property
    def fails(self) -> Flags:
        import numpy as np

        repeated = self.offences[-1] & (np.sum(self.offences, axis=0) >= 2)
        result: Flags = repeated & (self.joint >= self.joint_limit)
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
    joint, joint_limit = _joint(series)
    return Relative(
        excess=recent[-1], spread=spread, limit=limit, offences=offences, joint=joint, joint_limit=joint_limit
    )  # fmt: skip


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


def _joint(series: Floats) -> tuple[Floats, Floats]:
    """The evidence for a step that began one or two nights ago, and its limit, both in units of the fleet's own spread of it."""
    import numpy as np

    nights, *size = series.shape
    pasts = range(nights - GAP, LEAST_NIGHTS + LEAST_SPREAD_NIGHTS, -3)
    if len(pasts) < 3:
        return np.full(size, np.nan), np.full(size, np.inf)
    model = levels.noise(series[:-GAP])
    usual = np.concatenate([_step_scores(series[:past], model) for past in pasts], axis=1)
    spread = np.fmax(np.stack([robust.sigma(values) for values in usual]), 0.5)
    joint = np.fmax.reduce(_step_scores(series, model) / spread[:, None], axis=0)
    freedom = np.sum(~np.isnan(usual[0]), axis=0) / 2
    limits = np.array([robust.limit(FALSE_RATE, float(value)) for value in freedom])
    return joint, np.broadcast_to(limits, size)


def _step_scores(series: Floats, model: tuple[Floats, Floats]) -> Floats:
    window = series[-JOINT_NIGHTS:]
    return levels.scores(window, [levels.step(len(window), length) for length in (2, 3)], *model)[0]
