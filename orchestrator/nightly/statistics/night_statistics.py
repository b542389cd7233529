"""One judge of nights: each figure of a night against the reference of its own earlier nights, with one limit.

Numbers in, judgement out. All differences are natural logarithms, signed so that a greater one is worse; ``percent`` says them as
people do. Arrays are nights x nodes x metrics, of metrics that the same nodes have; the nights are judged in their order, as each of
them decides what the later ones are compared with. What the numbers mean is in ``judging.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...model.frozen import dataclass
from ..records import Better
from . import robust

if TYPE_CHECKING:
    from ..records import Flags, Floats

#: Chance that the first measurement of a sound night as a whole is beyond the limit of a failure, the mean of its last nights beyond
#: theirs, and anything beyond that of a warning: divided over the nodes and metrics of the night.
FALSE_FAILURE, FALSE_LASTING, FALSE_WARNING = 3e-4, 5e-4, 1e-2
#: A change beyond this multiple of the class's least change, or beyond half of a rate, is never a pass, however wide the limit is.
RESOLUTION, HALF = 4.0, math.log(2)
#: Where the limit beside equal nodes is wider, they differ too much to see an odd one: that a node is within it says nothing.
WIDEST = 0.5
#: Nights of a reference, the first ones since the level was set.
REFERENCE_NIGHTS = 20
#: A spread of the class counts as much as this many measured differences.
CLASS_WEIGHT = 4.0
#: Nights whose mean shows a small change that lasts, and the share of the least change that it must exceed.
LASTING_NIGHTS, LASTING_SHARE = 4, 0.6
#: Nights among which a second flaky one fails.
FLAKY_NIGHTS = 5
#: A change of all nodes fails from here on; below it is a warning.
FLEET_FAILURE = math.log1p(0.08)
#: Nodes that the effect of a day, and peers, need.
LEAST_NODES = 3
#: Nights of a slow slide, and the share of the usual range of a night that it must exceed.
SLIDE_NIGHTS, SLIDE_NOISE = 20, 0.9
#: A node's own spread counts where it is known from so many nights and is wider than the fleet's by more than chance.
OWN_NIGHTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The numbers of a figure. ``kind``: its class; ``excess``: ln(tonight / reference) without the day, above 0 is worse; None where
    nothing can be compared. ``limit``: beyond it the figure is measured again, and fails if it is beyond again; ``is_resolved``: it is no
    wider than RESOLUTION. ``reference``: a value in the metric's unit; ``first``, ``last``, ``nights``: the nights that it is the median
    of. ``again``: the excess of the second measurement, None if there was none. ``day``: how much worse all nodes are, which is no part of
    ``excess``. ``is_suspect``: a second measurement would decide. ``peers``: compared with the equal nodes of this night, for want of
    earlier nights.
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
    is_resolved: bool = True

    @property
    def change(self) -> float | None:
        """Return the change as a share of the reference, by the value: -0.587 is a rate 58.7 % lower, or a time that much shorter."""
        return None if self.excess is None else percent(self.excess, self.better)

    @property
    def change_again(self) -> float | None:
        return None if self.again is None else percent(self.again, self.better)


def percent(excess: float, better: Better) -> float:
    """The change of the value itself, as a share."""
    return math.expm1(excess if better == "lower" else -excess)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nights:
    """``values``, ``again``: nights x nodes x metrics, NaN where there is none: the median of a night's passes, and of its second
    measurement. ``passes``: nights x metrics: the variance between the passes of a night. ``levels``: a new level begins with this night.
    ``labels``: of the nodes; ``apart``: those that are no reference for others. ``least``, ``spread``, ``peers``: by metric, of its
    class. ``figures``: all that are judged in a night, also in other arrays.
    """

    values: Floats
    again: Floats
    passes: Floats
    levels: Flags
    labels: Sequence[str]
    apart: Flags
    least: Floats
    spread: Floats
    peers: Floats
    figures: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """The judgement of one night, nodes x metrics. ``excess``: NaN without a reference; ``limit``: of a failure; ``weak``: of a
    warning, and ``usual`` without the least change of the class. ``first``: the first measurement is beyond the limit; ``flaky``: one of
    two is. ``lasting``: the mean of the last nights is beyond its limit. ``peers``: compared with so many equal ones, for want of a
    reference. ``enters``: the night may be part of the reference. ``day``, ``fleet``: by metric, of all nodes together; ``fleet`` has
    a reference and limits of its own.
    """

    excess: Floats
    again: Floats
    limit: Floats
    weak: Floats
    reference: Floats
    nights: Floats
    first: Flags
    flaky: Flags
    unresolved: Flags
    lasting: Flags
    lasting_mean: Floats
    fails: Flags
    peers: Floats
    enters: Flags
    usual: Floats
    day: Floats
    fleet: Floats
    fleet_limit: Floats
    fleet_weak: Floats
    fleet_nights: Floats

    @property
    def is_peer(self) -> Flags:
        return self.peers > 0

    @property
    def warns(self) -> Flags:
        result: Flags = (self.flaky | self.unresolved) & ~self.fails
        return result

    @property
    def suspects(self) -> Flags:
        """Return what a second measurement decides."""
        import numpy as np

        is_beyond = self.first | self.lasting | (self.excess > self.weak)
        result: Flags = is_beyond & np.isnan(self.again) & ~self.is_peer
        return result

    @property
    def fleet_warns(self) -> Flags:
        return self.fleet > self.fleet_weak

    @property
    def fleet_fails(self) -> Flags:
        import numpy as np

        return self.fleet > np.maximum(self.fleet_limit, FLEET_FAILURE)


class _References:
    """The reference of each series: the median of its first nights, and what is known of the spread. ``apart``: of each series the median
    distance of these nights from their median; ``squares`` of all together, with so many ``degrees`` of freedom.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        import numpy as np

        self._kept = np.full((REFERENCE_NIGHTS, *shape), np.nan)
        self.count = np.zeros(shape, dtype=int)
        self.median = np.full(shape, np.nan)
        self.apart = np.full(shape, np.nan)
        self.squares, self.degrees = np.zeros(shape[-1]), np.zeros(shape[-1])

    def begin_anew(self, mask: Flags) -> None:
        import numpy as np

        self._kept[:, mask] = np.nan
        self.count[mask] = 0
        self.median[mask] = self.apart[mask] = np.nan

    def learn(self, values: Floats, enters: Flags, share: Floats) -> None:
        """``share``: of a degree of freedom that each difference is worth."""
        import numpy as np

        new = enters & (self.count < REFERENCE_NIGHTS)
        known = new & (self.count > 0)
        difference = np.where(known, values - self.median, 0.0)
        self.squares += np.sum((share > 0) * difference**2 / _widening(self.count), axis=tuple(range(values.ndim - 1)))
        self.degrees += np.sum(known * share, axis=tuple(range(values.ndim - 1)))
        if new.any():
            indices = np.nonzero(new)
            self._kept[(self.count[indices], *indices)] = values[indices]
            self.count[indices] += 1
            self.median[new] = robust.median(self._kept[:, new])
            self.apart[new] = robust.median(np.abs(self._kept[:, new] - self.median[new]))


def _widening(count: Any) -> Any:
    """The variance of a difference from a median of so many nights, as a multiple of that of a night."""
    import numpy as np

    return 1 + 1.2 / np.maximum(count, 1)


def replay(nights: Nights) -> Iterator[Verdict]:
    """The verdicts of all nights, in their order."""
    state = _State(nights)
    for index in range(len(nights.values)):
        verdict = state.judge(index)
        yield verdict
        state.learn(index, verdict)


class _State:
    """The state that the nights up to one leave to the later ones."""

    def __init__(self, nights: Nights) -> None:
        _, nodes, metrics = nights.values.shape
        self._nights = nights
        self._references, self._fleet = _References((nodes, metrics)), _References((metrics,))
        self._excesses: list[Floats] = []
        self._flaky: list[Flags] = []

    def judge(self, index: int) -> Verdict:
        import numpy as np

        nights, references, values = self._nights, self._references, self._nights.values[index]
        noise = 0.5 * np.nan_to_num(nights.passes[index])  # of the median of three
        limit, usual, lasting_limit = _limits(nights, references, noise)
        most = most_that_passes(nights.least)
        weak = np.clip(usual, nights.least, most)
        raw = values - references.median
        day, is_pair, known = self._day(raw, weak)
        excess, again = raw - day, nights.again[index] - references.median - day
        beside = beside_peers(values, nights.labels, nights.apart, nights.least, nights.peers, nights.figures)
        is_peer = ~np.isnan(beside.excess) & (references.count == 0)
        excess, limit = np.where(is_peer, beside.excess, excess), np.where(is_peer, np.inf, limit)  # they warn at most
        weak = np.where(is_peer, beside.limit, weak)
        again = np.where(is_peer, np.nan, again)
        first, repeated = excess > limit, again > limit
        flaky = first ^ repeated
        last = np.array([*self._excesses[1 - LASTING_NIGHTS :], excess])
        enough = np.sum(~np.isnan(last), axis=0) >= LASTING_NIGHTS - 1
        mean = np.where(enough, robust.nanmean(last), np.nan)
        lasting = (mean > lasting_limit) & ~np.isnan(excess) & ~is_peer
        was_flaky = np.sum([np.zeros_like(flaky), *self._flaky[1 - FLAKY_NIGHTS :]], axis=0) > 0
        fails = (first & repeated) | (lasting & (again > LASTING_SHARE * nights.least)) | (flaky & was_flaky)
        unresolved = (excess > weak) & ~first & (~(again <= weak) | (excess > most))
        unresolved |= is_peer & beside.odd
        is_bad = (
            first | fails | (unresolved & (excess > 0))
        )  # a better one is compared with its own nights from then on
        fleet_limit, fleet_usual, _ = _limits(nights, self._fleet, noise)
        fleet_weak = np.clip(fleet_usual, nights.least, most)
        # Nodes that were never measured together have no common reference: what they had in common was 0 then.
        is_known, nodes_nights = self._fleet.count > 0, references.count.max(axis=0)
        shift = np.where(known >= LEAST_NODES, day - np.where(is_known, self._fleet.median, 0.0), np.nan)
        return Verdict(
            excess=excess, again=again, limit=limit, weak=weak, usual=usual, reference=references.median.copy(),
            nights=references.count.copy(), first=first, flaky=flaky, unresolved=unresolved, lasting=lasting, lasting_mean=mean,
            fails=fails, peers=np.where(is_peer, beside.others, 0), enters=~np.isnan(values) & ~is_bad, day=day,
            fleet=np.where(is_pair, day, shift), fleet_nights=np.where(is_known, self._fleet.count, nodes_nights),
            fleet_limit=np.where(is_pair, limit.max(axis=0), fleet_limit), fleet_weak=np.where(is_pair, weak.min(axis=0), fleet_weak),
        )  # fmt: skip

    def _day(self, raw: Floats, weak: Floats) -> tuple[Floats, Flags, Floats]:
        """Return by metric how much worse all nodes are, whether they are two, and how many. Two nodes have no middle: if both are worse,
        they share what the better of them has.
        """
        import numpy as np

        common = np.where(self._nights.apart[:, None], np.nan, raw)
        known = np.sum(~np.isnan(common), axis=0)
        usual = np.where(self._fleet.count > 0, self._fleet.median, 0.0)
        day = _middle(np.where(known >= LEAST_NODES, common, 0.0), self._nights.least, usual)
        is_pair = (known == LEAST_NODES - 1) & (np.sum(common > weak, axis=0) == LEAST_NODES - 1)
        return np.where(is_pair, np.nanmin(np.where(is_pair, common, 0.0), axis=0), day), is_pair, known

    def learn(self, index: int, verdict: Verdict) -> None:
        import numpy as np

        nights, levels, values = self._nights, self._nights.levels[index], self._nights.values[index]
        self._references.begin_anew(levels)
        self._fleet.begin_anew(levels.all(axis=0))
        measured = ~np.isnan(values)
        count = np.sum(measured & ~nights.apart[:, None], axis=0)
        # A day that was taken away costs a degree of freedom.
        share = np.where(count >= LEAST_NODES, 1 - 1 / np.maximum(count, 2), 1.0)
        # Where all nodes begin anew, what they had in common is no longer a difference.
        is_new = levels.all(axis=0)
        day = np.where(is_new, 0.0, verdict.day)
        enters = verdict.enters | (levels & measured)
        self._references.learn(values - day, enters, share * ~nights.apart[:, None])
        is_usual = ~(verdict.fleet > verdict.fleet_weak) & ~(np.isnan(verdict.fleet) & (self._fleet.count > 0))
        self._fleet.learn(day, (count >= LEAST_NODES) & (is_usual | is_new), np.ones_like(day))
        self._excesses.append(np.where(levels, np.nan, verdict.excess))
        self._flaky.append(verdict.flaky & ~levels)


def _limits(nights: Nights, references: _References, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """The limit of a failure, that of a warning without the class's least change, and that of a mean of the last nights."""
    import numpy as np

    weight = CLASS_WEIGHT + references.degrees
    variance = (CLASS_WEIGHT * np.maximum(nights.spread**2, noise) + references.squares) / weight
    # Of a node: one odd night does not widen it, and neighbouring nights are alike, so that they say a third of what others would.
    own, count = (robust.MAD_TO_SIGMA * references.apart) ** 2, np.maximum(references.count, 1)
    is_wider = (count >= OWN_NIGHTS) & (own > variance * (1 + 3 * np.sqrt(6 / count)))
    variance = np.maximum(np.where(is_wider, own, variance), noise)
    freedom = np.where(is_wider, count - 1, weight)
    rates = FALSE_FAILURE, FALSE_WARNING, FALSE_LASTING
    fail, warn, last = (robust.student(rate / nights.figures, freedom) for rate in rates)
    wide = np.sqrt(variance * _widening(references.count))
    lasting = np.maximum(LASTING_SHARE * nights.least, last * np.sqrt(variance * (_widening(references.count) - 0.5)))
    return np.maximum(nights.least, fail * wide), warn * wide, lasting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beside:
    """Nodes x metrics beside the median of equal ones of the same night. ``excess``: NaN with fewer than LEAST_NODES; ``others``: how many
    they are; ``odd``: those that are worse, and better ones where the others may be slow: a quarter is better, or one by much.
    """

    excess: Floats
    limit: Floats
    others: Floats
    odd: Flags


def beside_peers(
    values: Floats, labels: Sequence[str], apart: Flags, least: Floats, peers: Floats, figures: int
) -> Beside:
    """``values``: nodes x metrics; the others as of Nights."""
    import numpy as np

    excess, limit, others = (np.full(values.shape, np.nan) for _ in range(3))
    odd, most = np.zeros(values.shape, dtype=bool), most_that_passes(least)
    for rows, is_equal in _comparable(labels):
        equal = np.where(apart[rows, None], np.nan, values[rows])
        number = np.sum(~np.isnan(equal), axis=0)
        enough = number >= LEAST_NODES
        known, split = np.where(enough, equal, 0.0), least if is_equal else np.full_like(least, np.inf)
        middle, (low, high) = np.where(enough, _middle(known, split, -np.inf), np.nan), robust.middles(known, axis=0)
        apart_of = np.abs(known - np.where(high - low > split, np.where(known < high, low, high), (low + high) / 2))
        spread = robust.MAD_TO_SIGMA * robust.median(apart_of, axis=0)
        weight = CLASS_WEIGHT + np.maximum(number - 2, 0)
        variance = (CLASS_WEIGHT * peers**2 + np.maximum(number - 2, 0) * spread**2) / weight
        usual = robust.student(FALSE_WARNING / figures, weight) * np.sqrt(variance * (1 + 1 / np.maximum(number, 1)))
        excess[rows] = values[rows] - middle
        limit[rows] = np.where(usual > WIDEST, usual, np.clip(usual, least, most))
        others[rows] = number - ~apart[rows, None]
        is_better = is_equal & (excess[rows] < -limit[rows])
        is_many = 4 * np.sum(is_better, axis=0) >= np.sum(~np.isnan(excess[rows]), axis=0)
        odd[rows] = (excess[rows] > limit[rows]) | (is_better & (is_many | (excess[rows] < -most)))
    return Beside(excess=excess, limit=limit, others=others, odd=odd)


def _comparable(labels: Sequence[str]) -> Iterator[tuple[Flags, bool]]:
    """Yield rows that are compared with each other, and whether they are equal parts: nodes, and ranks of one number. Directions of
    links, and the ranks of fewer nodes than LEAST_NODES, differ by their places, too.
    """
    import numpy as np

    places = np.array(["" if "->" in label else label.partition(":")[2] for label in labels])
    kinds, counts = np.unique(places, return_counts=True)
    is_small, are_links = counts.min() < LEAST_NODES, any("->" in label for label in labels)
    for kind in [""] if is_small else kinds:
        yield (places == kind) | is_small, not are_links and (len(kinds) == 1 or not is_small)


def _middle(values: Floats, least: Floats, usual: Any) -> Floats:
    """The median over the nodes. Half of an even number of nodes may be slow: where the two middle ones differ by more than the least
    change, all between them is a median, and that which is nearest to ``usual`` counts.
    """
    import numpy as np

    low, high = robust.middles(values, axis=0)
    return np.where(high - low > least, np.clip(usual, low, high), (low + high) / 2)


def most_that_passes(least: Any) -> Any:
    """The largest change that may pass where the least one that counts is this."""
    import numpy as np

    return np.minimum(RESOLUTION * least, np.maximum(HALF, least))


def least_change(share: float, better: Better) -> float:
    """A share as a logarithm: so large that the share which people read is exact."""
    return math.log1p(share) if better == "lower" else -math.log1p(-share)


def noise(values: Floats) -> Floats:
    """nights x metrics: the variance between the passes of a night, in the middle of the nodes. ``values``: nights x nodes x metrics x
    passes. One pass of three that is odd does not widen it.
    """
    import numpy as np

    apart = np.abs(values - robust.median(values, axis=3)[..., None])
    single = np.sum(~np.isnan(values), axis=3) < 2
    return robust.median(np.where(single, np.nan, (robust.MAD_TO_SIGMA * robust.median(apart, axis=3)) ** 2), axis=1)


def slide_limit(nights: Nights, verdict: Verdict) -> Floats:
    import numpy as np

    limit: Floats = np.maximum(LASTING_SHARE * nights.least, SLIDE_NOISE * verdict.usual)
    return limit


def slides(values: Floats, limit: Floats) -> tuple[Floats, Flags]:
    """nodes x metrics: the change of the last nights along the median of all slopes (Theil and Sen), and whether it is beyond the
    limit. ``values``: nights x nodes x metrics, without the day.
    """
    import numpy as np

    window = values[-SLIDE_NIGHTS:]
    if len(window) < SLIDE_NIGHTS:
        return np.zeros(values.shape[1:]), np.zeros(values.shape[1:], dtype=bool)
    earlier, later = np.triu_indices(len(window), 1)
    steps = window[later] - window[earlier]
    slope = robust.median(steps / (later - earlier)[:, None, None], axis=0)
    change = slope * (len(window) - 1)
    count = np.sum(~np.isnan(window), axis=0)
    return change, (change > limit) & (count >= SLIDE_NIGHTS * 3 // 4)
