"""What pictures are drawn from: distribution curves, and points thinned to what can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .statistics import Floats

#: A curve of more points is no finer on a page.
POINTS = 400


def distribution(samples: Floats) -> tuple[Floats, Floats]:
    """(value, part of the samples that are at most that), ascending; of many samples every n-th and both ends."""
    import numpy as np

    ranked = np.sort(samples)
    ranks = np.arange(1, ranked.size + 1)
    if ranked.size > POINTS:
        tail = np.arange(max(0, ranked.size - POINTS // 4), ranked.size)
        body = np.linspace(0, ranked.size - 1, POINTS).astype(int)
        chosen = np.union1d(body, tail)
        ranked, ranks = ranked[chosen], ranks[chosen]
    return ranked, ranks / samples.size


def thinned(x: Floats, y: Floats, most: int = 1500) -> tuple[Floats, Floats]:
    """At most so many points, about: in each stretch of ``x`` the lowest and the highest, so that no outlier is lost."""
    import numpy as np

    if x.size <= most:
        return x, y
    order = np.argsort(x, kind="stable")
    parts = np.array_split(order, most // 2)
    chosen = np.unique([spot for part in parts for spot in (part[y[part].argmin()], part[y[part].argmax()])])
    return x[chosen], y[chosen]


def long_tail(samples: Floats) -> bool:
    """Whether a linear axis would press everything but the tail against its edge."""
    import numpy as np

    return bool(samples.size and samples.max() > 8 * np.median(samples) > 0)


def floor(samples: Floats) -> float:
    """Where a log axis may begin: a few transfers that were there at once shall not take up half of it."""
    import numpy as np

    low, middle = np.percentile(samples, (5, 50), method="inverted_cdf")
    return float(max(samples.min(), min(low, middle / 3) / 2)) or float(middle) or 1e-6
