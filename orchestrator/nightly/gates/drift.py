"""Gate "drift": a change of a node's level, in a step or slowly, and the night in which it began.

Steps and ramps of several lengths that reach to tonight are tested (the likelihood ratio test for a change in mean, Sen and
Srivastava, Annals of Statistics 3, 1975, and for a bend, Quandt, JASA 53, 1958), for noise that is correlated from night to
night (``levels.py``). The spread of the scores of the other nodes widens the limit: a fleet whose nodes wander is not failed.

E-Divisive, as Otava has it, tests by permutations or by Student's t and takes the nights as independent; the README
compares both.

Arrays are nights x nodes x metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from . import levels, robust

if TYPE_CHECKING:
    from .nights import Flags, Floats

#: Nights that are searched, and the least of them before a change.
HISTORY, BEFORE = 90, 10
#: Few lengths, as each one has its own chance to be wrong.
STEPS, RAMPS = (5, 10), (12, 20)
MINIMUM_RATIO = 0.03
CUT_SIGMAS = 3.5
#: As in ``relative.py``. Nodes that were rebooted often wander further than normal noise says, and a false drift lasts for nights.
WARN_RATE, FALSE_RATE = 1e-5, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """nodes x metrics, for the shape that fits best. ``change``: by how much the node is worse tonight."""

    score: Floats
    change: Floats
    warn_limit: float
    fail_limit: float

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.score)

    @property
    def warns(self) -> Flags:
        return (self.score >= self.warn_limit) & (self.change >= MINIMUM_RATIO)

    @property
    def fails(self) -> Flags:
        return (self.score >= self.fail_limit) & (self.change >= MINIMUM_RATIO)


def judge(deviations: Floats) -> Drift:
    """``deviations``: from :func:`deviations.long_deviations`, up to the judged night."""
    import numpy as np

    series = deviations[-HISTORY:]
    nights, nodes, metrics = series.shape
    warn_limit, fail_limit = (levels.limit(rate, nodes, nights) for rate in (WARN_RATE, FALSE_RATE))
    shapes = [
        shape(nights, length) for shape, lengths in ((levels.step, STEPS), (levels.ramp, RAMPS))
        for length in lengths if length <= nights - BEFORE
    ]  # fmt: skip
    if not shapes or not nodes:
        blank = np.full((nodes, metrics), np.nan)
        return Drift(score=blank, change=blank, warn_limit=warn_limit, fail_limit=fail_limit)
    scores, changes = levels.scores(series, shapes, *levels.noise(series), cut=CUT_SIGMAS)
    tested = scores / _spread_of_others(scores)
    tested[:, np.sum(~np.isnan(series), axis=0) < BEFORE] = np.nan
    best = np.argmax(np.where(np.isnan(tested), -np.inf, tested), axis=0)[None]
    score, change = (np.take_along_axis(values, best, 0)[0] for values in (tested, changes))
    return Drift(score=score, change=change, warn_limit=warn_limit, fail_limit=fail_limit)


def _spread_of_others(scores: Floats) -> Floats:
    """nodes x metrics: a node that drifts must not widen its own limit. At least 1: the spread that the noise alone has."""
    import numpy as np

    nodes, metrics = scores.shape[1:]
    if nodes == 1:
        return np.ones((nodes, metrics))
    others = [np.delete(scores, node, axis=1).reshape(-1, metrics) for node in range(nodes)]
    return np.fmax(np.stack([robust.body(values) for values in others]), 1.0)


def onset(series: Floats) -> tuple[int, bool]:
    """Of one node: the first night that is worse, and whether the change is slow: a line with a bend beats a step.

    Least squares over all steps and bends (Quandt, JASA 53, 1958).
    """
    import numpy as np

    measured = np.flatnonzero(~np.isnan(series))
    time, values = measured.astype(float), series[measured]
    fits = []
    for night in range(2, len(series)):
        shapes = (time >= night).astype(float), np.maximum(time - night + 1, 0.0)
        for is_slow, shape in enumerate(shapes):
            columns = np.stack([np.ones_like(time), shape], axis=1)
            solution = np.linalg.lstsq(columns, values, rcond=None)[0]
            if solution[1] > 0:
                fits.append((float(np.sum((values - columns @ solution) ** 2)), night, bool(is_slow)))
    if not fits:
        return len(series) - 1, False
    _, night, is_slow = min(fits)
    return night, is_slow
