"""One judge of nights: each figure of a night against the reference of its own earlier nights, with one limit.

Numbers in, judgement out. All differences are natural logarithms, signed so that a greater one is worse; `percent` says them as people do.
"""

from __future__ import annotations

import math

from ..model.frozen import dataclass
from .gates.nights import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a figure was compared with. ``kind``: its class; ``excess``: ln(tonight / reference) without the day, above 0 is worse; None
    where nothing can be compared. ``limit``: beyond it the figure is measured again, and fails if it is again beyond. ``reference``: the value,
    in the metric's unit; ``first``, ``last``, ``nights``: the nights that it is the median of. ``again``: the excess of the second
    measurement, None if there was none. ``day``: how much worse all nodes are, which is no part of ``excess``. ``is_suspect``: a second
    measurement would decide. ``peers``: compared with the equal nodes of this night, for want of earlier ones.
    """

    kind: str
    better: Better
    excess: float | None = None
    limit: float | None = None
    reference: float | None = None
    first: str = ""
    last: str = ""
    nights: int = 0
    again: float | None = None
    day: float = 0.0
    is_suspect: bool = False
    peers: int = 0

    @property
    def change(self) -> float | None:
        """As a share of the reference, by the value: -0.587 is a rate 58.7 % lower, or a time that much shorter."""
        return None if self.excess is None else percent(self.excess, self.better)

    @property
    def change_again(self) -> float | None:
        return None if self.again is None else percent(self.again, self.better)


def percent(excess: float, better: Better) -> float:
    """The change of the value itself, as a share."""
    return math.expm1(excess if better == "lower" else -excess)
