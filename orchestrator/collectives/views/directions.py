"""Directions of links by the probe: how each compares with the others, by the rule of ``model/ratio.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...model import ratio
from ...model.frozen import dataclass

#: A direction is compared with the one at this part of the others, the fastest first: a slow node slows many of them.
SHARE = 1 / 3
#: The least difference of a direction that counts: a probe is repeatable.
MARGIN = 0.01
#: An interval is wide if its ends differ by more than this.
WIDE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A link from ``sender`` to ``receiver`` by the probe: ``alpha_s``, and ``beta`` in seconds per byte.

    ``interval``: of beta, (least, greatest); None in older records, and for too few trains of messages. ``reason``: why beta or
    the interval is not known. ``samples``: (bytes, median seconds, repetitions). ``is_internal``: both ranks are on one node.
    """

    sender: int
    receiver: int
    alpha_s: float
    beta: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""
    samples: tuple[tuple[int, float, int], ...] = ()
    is_internal: bool = False

    @property
    def is_comparable(self) -> bool:
        """Return whether it can be compared: it passes a link, and its rate is one that the link can carry."""
        return self.beta is not None and not self.is_internal

    @property
    def is_wide(self) -> bool:
        """Return whether the probe knows the rate only roughly."""
        return self.beta is None or (self.interval is not None and self.interval[1] > self.interval[0] * (1 + WIDE))


def slow(directions: Sequence[Direction]) -> list[Direction]:
    """Directions that are clearly slower than the others, the worst first."""
    clear = [direction for direction, change in changes(directions) if change.outcome(MARGIN) == "slower"]
    return sorted(clear, key=lambda direction: -(direction.beta or 0.0))


def slow_end(sender: int, receiver: int, directions: Sequence[Direction]) -> str:
    """Return where the probe finds a slow link slow: ``sending`` or ``receiving`` if it is so with all other peers as well, ``wire`` if
    with none; empty where the probe does not show it, as with a fault that began later.
    """
    slow_ends = {(direction.sender, direction.receiver) for direction in slow(directions)}
    if (sender, receiver) not in slow_ends:
        return ""
    every = {(direction.sender, direction.receiver) for direction in directions if not direction.is_internal}
    every -= {(sender, receiver)}
    sent, received = ({ends for ends in every if ends[n] == rank} for n, rank in enumerate((sender, receiver)))
    if not (sent | received) & slow_ends:
        return "wire" if sent and received else ""
    is_sending, is_receiving = (bool(ends) and ends <= slow_ends for ends in (sent, received))
    if is_sending == is_receiving:
        return ""
    return "sending" if is_sending else "receiving"


def changes(directions: Sequence[Direction]) -> list[tuple[Direction, ratio.Interval]]:
    """Return how much longer each direction takes than the others; it skips those that have no interval, or are faster than their link.

    The probe measures each direction by itself: the ends of both intervals, each of 95 %, bound the change.
    """
    known = [direction for direction in directions if direction.is_comparable and direction.interval]
    pairs = ((direction, [other for other in known if other is not direction]) for direction in known)
    return [(direction, _change(direction, others)) for direction, others in pairs if others]


def _change(direction: Direction, others: Sequence[Direction]) -> ratio.Interval:
    own = _figures(direction)
    usual = [sorted(column)[int(SHARE * len(others))] for column in zip(*map(_figures, others), strict=True)]
    low, value, high = own[0] / usual[2] - 1, own[1] / usual[1] - 1, own[2] / usual[0] - 1
    return ratio.Interval(value=min(max(value, low), high), low=low, high=high)


def _figures(direction: Direction) -> tuple[float, float, float]:
    """Least, middle and greatest beta."""
    beta, (least, greatest) = direction.beta or math.inf, direction.interval or (0.0, math.inf)
    return least, beta, greatest
