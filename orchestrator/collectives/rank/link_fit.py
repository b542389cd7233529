"""Fits the time per byte of a direction of a link to the arrival times of trains of messages. Pure, without torch.

Disturbances of a machine only delay a message: a receiver that is not scheduled notes an arrival late, and the next ones at the
right time. The median of the slopes between all arrivals of a train (Theil-Sen) ignores up to 29 % of late arrivals, and the
median over trains ignores trains that were disturbed as a whole. Messages over a shaped link come at an even pace, which a sender
or a machine that stopped interrupts; there only arrivals between two interruptions are compared.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from ...model.frozen import dataclass

#: TCP payload and length of a full frame of Ethernet: 1500 bytes less 20 of IP, 20 of TCP and 12 of its time stamps.
PAYLOAD, FRAME = 1448, 1514
#: A fit that is faster than the wire by at most this share is set to the wire's rate: arrivals are known to no better.
RESOLUTION = 0.02
#: The confidence of an interval, if there are enough trains.
CONFIDENCE = 0.99
#: A rate is known only roughly if the ends of its interval differ by more than this share.
NARROW = 0.02
#: On a shaped link a train was interrupted where the time between two arrivals is not within this factor of its median.
EVEN = 2.0
#: Fewer trains give no interval: with six, least and greatest contain the median with 97 %.
LEAST_TRAINS = 6

#: (bytes that have arrived, seconds since the first arrival)
Arrivals = Sequence[tuple[int, float]]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fit:
    """``alpha`` s + ``beta`` s/byte x bytes."""

    alpha: float
    beta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beta:
    """Seconds per byte of a direction: the median of its trains' slopes, and the interval of that median.

    ``value`` is None if the wire cannot carry as much; ``interval`` is None for too few trains. ``reason``: why one is None.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""


def slope(arrivals: Arrivals, *, is_shaped: bool = False) -> float:
    """The median of the slopes between arrivals (Theil-Sen), in seconds per byte. Raises ValueError for fewer than two.

    The kernel delivers packets of up to 64 KiB, and a late receiver finds several messages. Of messages that come together,
    only the last one shows how many bytes had arrived by then. All arrivals are compared; on a shaped link those between two
    interruptions, if they are more than a few.
    """
    pairs = list(itertools.pairwise(arrivals))
    apart = sorted(after[1] - before[1] for before, after in pairs)
    together = statistics.mean(apart[:-1] or apart) / 2  # the longest one may hold an interruption
    last = [before for before, after in pairs if after[1] - before[1] >= together]
    points = [*last, arrivals[-1]]
    every = _slopes(points)
    even = [slope for part in _even_parts(points) for slope in _slopes(part)] if is_shaped else []
    return statistics.median(even if len(even) >= len(points) else every)


def _slopes(points: Arrivals) -> list[float]:
    pairs = itertools.combinations(points, 2)
    return [(late - early) / (more - less) for (less, early), (more, late) in pairs]


def _even_parts(points: Arrivals) -> list[Arrivals]:
    """The parts of a train between interruptions. The last message may be short of a packet, and come early."""
    times = [after[1] - before[1] for before, after in itertools.pairwise(points)]
    usual = statistics.median(times) if times else 0.0
    cuts = [
        number
        for number, seconds in enumerate(times, 1)
        if seconds > usual * EVEN or (seconds < usual / EVEN and number < len(times))
    ]
    return [points[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(points)])]


def beta(slopes: Sequence[float], rate: float = 0.0) -> Beta:
    """The time per byte of a direction from the slopes of its trains.

    ``rate``: bit/s that the wire carries with its headers, 0 if that is not known. No beta is below the wire's own.
    """
    least, value, interval = least_beta(rate), statistics.median(slopes), median_interval(slopes)
    few = "" if interval else f"{len(slopes)} trains of messages give no interval; it needs {LEAST_TRAINS}"
    if value < least * (1 - RESOLUTION):
        return Beta(value=None, interval=interval, reason="faster than the link carries")
    low, high = interval or (value, value)
    bounded = (max(low, least), max(high, least)) if interval else None
    return Beta(value=max(value, least), interval=bounded, reason=few)


def is_rough(beta: Beta) -> bool:
    """Return whether the rate is known only roughly: trains of the direction were disturbed."""
    return beta.interval is None or beta.interval[1] > beta.interval[0] * (1 + NARROW)


def least_beta(rate: float) -> float:
    """Seconds per payload byte on a wire of ``rate`` bit/s; 0 if the rate is not known."""
    return 8 / rate * FRAME / PAYLOAD if rate > 0 else 0.0


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest pair of order statistics that contains the median with CONFIDENCE, else least and greatest.

    The number of values below the median is binomial (n, 1/2) whatever their distribution. None for fewer than LEAST_TRAINS.
    """
    ordered, count = sorted(values), len(values)
    if count < LEAST_TRAINS:
        return None
    tail, rank = 1 / 2**count, 0
    while 2 * (tail + math.comb(count, rank + 1) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
        tail += math.comb(count, rank) / 2**count
    return ordered[rank], ordered[count - 1 - rank]


def agreed(fits: Sequence[Fit]) -> Fit:
    """The line that the cost models use: medians over the directions."""
    return Fit(statistics.median(fit.alpha for fit in fits), statistics.median(fit.beta for fit in fits))


def rounds(world: int) -> tuple[tuple[Pair, ...], ...]:
    """All pairs, in rounds in which every rank is in at most one pair (the circle method for tournaments)."""
    ring = [*range(world), *([-1] if world % 2 else [])]
    result = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        result.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if -1 not in pair)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(result)


def turns(nodes: Sequence[int], *, flat: bool = True, together_from: int = 5) -> tuple[tuple[Pair, ...], ...]:
    """Pairs of ranks that are probed at the same time: no two of them share a node. ``nodes``: the node of each rank.

    One pair at a time on fewer than ``together_from`` nodes, and where pairs share uplinks (not ``flat``).
    """
    pairs = [pair for round_ in rounds(len(nodes)) for pair in round_]
    if not flat or len(set(nodes)) < together_from:
        return tuple((pair,) for pair in pairs)
    busy: list[set[int]] = []
    result: list[list[Pair]] = []
    for pair in pairs:
        ends = {nodes[rank] for rank in pair}
        turn = next((turn for turn, used in enumerate(busy) if not used & ends), len(busy))
        if turn == len(busy):
            busy.append(set())
            result.append([])
        busy[turn] |= ends
        result[turn].append(pair)
    return tuple(map(tuple, result))
