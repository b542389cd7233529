"""Directions of links by the probe: which are slower than the others, and how much slower one must be to be seen."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.frozen import dataclass

#: A direction is slow if its interval lies beyond those of this part of the others.
SHARE = 1 / 3
#: A direction is not called slower for less than this.
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
        """Whether it can be compared: it passes a link, and its rate is one that the link can carry."""
        return self.beta is not None and not self.is_internal

    @property
    def is_wide(self) -> bool:
        """Whether the probe knows the rate only roughly."""
        return self.beta is None or (self.interval is not None and self.interval[1] > self.interval[0] * (1 + WIDE))


def slow(directions: Sequence[Direction]) -> list[Direction]:
    """Directions that are clearly slower than the others, the worst first."""
    known = [(direction, *_bounds(direction, directions)) for direction in directions if direction.is_comparable]
    clear = [
        direction for direction, least, limit in known if limit is not None and least is not None and least > limit
    ]
    return sorted(clear, key=lambda direction: -(direction.beta or 0.0))


def slow_end(sender: int, receiver: int, directions: Sequence[Direction]) -> str:
    """Where the probe finds a slow link slow: ``sending`` or ``receiving`` if it is so with all other peers as well, ``wire`` if
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


def least_visible(directions: Sequence[Direction]) -> float | None:
    """The share by which any direction must be slower to be called slow; None if that is not known.

    Directions that are faster than their link, so that they have no beta, do not count.
    """
    shares = []
    for direction in (direction for direction in directions if direction.is_comparable):
        least, limit = _bounds(direction, directions)
        if least is None or limit is None:
            return None
        shares.append(max(limit / least - 1, MARGIN))
    return max(shares, default=None)


def _bounds(direction: Direction, directions: Sequence[Direction]) -> tuple[float | None, float | None]:
    """The least beta of the direction, and the beta beyond which it is slow."""
    others = sorted(
        other.interval[1] for other in directions if other is not direction and other.is_comparable and other.interval
    )
    limit = others[int(SHARE * len(others))] * (1 + MARGIN) if others else None
    return direction.interval[0] if direction.interval else None, limit
