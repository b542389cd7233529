"""Gate "drift": a change of a node's level, in a step or slowly, and the night in which it began.

Steps and ramps of several lengths that reach to tonight are tested (the likelihood ratio test for a change in mean, Sen and
Srivastava, Annals of Statistics 3, 1975, and for a bend, Quandt, JASA 53, 1958), for noise that is correlated from night to
night (``levels.py``). The spread of the scores of the other nodes widens the limit: a fleet whose nodes wander is not failed.

E-Divisive, as Otava has it, tests by permutations or by Student's t and takes the nights as independent; the README
compares both.

Arrays are nights x nodes x metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import levels, robust

if TYPE_CHECKING:
    from .nights import Flags, Floats

#: Nights that are searched, and the least of them before a change.
HISTORY, BEFORE = 90, 10
STEPS, RAMPS = (5, 8, 13, 20, 30), (8, 12, 16, 20, 30, 45)
MINIMUM_RATIO = 0.03
CUT_SIGMAS = 2.5
#: For normal noise. Nodes that were rebooted often wander further than normal noise says, and a false drift lasts for nights.
FALSE_RATE = 3e-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """nodes x metrics, for the shape that fits best. ``change``: by how much the node is worse tonight."""

    score: Floats
    limit: Floats
    change: Floats

    @property
    def is_known(self) -> Flags:
        import numpy as np

        return ~np.isnan(self.score)

    @property
    def fails(self) -> Flags:
        return (self.score >= self.limit) & (self.change >= MINIMUM_RATIO)


def judge(deviations: Floats) -> Drift:
    """``deviations``: from :func:`deviations.long_deviations`, up to the judged night."""
    import numpy as np

    series = deviations[-HISTORY:]
    nights, nodes, metrics = series.shape
    lengths = [length for length in (*STEPS, *RAMPS) if length <= nights - BEFORE]
    if not lengths or not nodes:
        blank = np.full((nodes, metrics), np.nan)
        return Drift(score=blank, limit=blank, change=blank)
    shapes = [levels.step(nights, length) for length in STEPS if length <= nights - BEFORE]
    shapes += [levels.ramp(nights, length) for length in RAMPS if length <= nights - BEFORE]
    scores, changes = levels.scores(series, shapes, *levels.noise(series), cut=CUT_SIGMAS)
    tested = scores / _spread_of_others(scores)
    tested[:, np.sum(~np.isnan(series), axis=0) < BEFORE] = np.nan
    best = np.argmax(np.where(np.isnan(tested), -np.inf, tested), axis=0)[None]
    limit = robust.limit(FALSE_RATE, max(1, nodes - 1) * nights / 10)
    return Drift(
        score=np.take_along_axis(tested, best, 0)[0], change=np.take_along_axis(changes, best, 0)[0],
        limit=np.full((nodes, metrics), limit),
    )  # fmt: skip


def _spread_of_others(scores: Floats) -> Floats:
    """nodes x metrics: a node that drifts must not widen its own limit. At least 1: the spread that the noise alone has."""
    import numpy as np

    nodes, metrics = scores.shape[1:]
    if nodes == 1:
        return np.ones((nodes, metrics))
    others = [np.delete(scores, node, axis=1).reshape(-1, metrics) for node in range(nodes)]
    return np.fmax(np.stack([robust.sigma(values) for values in others]), 1.0)


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
