"""The stragglers of a run: ranks that did not run, ranks and links that are lastingly slower than the others, what the probe adds.

What lasts is a rank or a link that is slower than the others in at least two cases, by more than chance explains. Each case compares a
candidate with the others of the same iterations, by the rule of ``model/ratio.py``. The level of its interval is such that in LEVEL of
all runs any two of the cases lie beyond the least difference by chance, for any candidate: a test by the second smallest of m
probabilities (Wilkinson, "A statistical consideration in psychological research", Psychological Bulletin 48, 1951). So a single noisy
case accuses nobody, nor does a delay in a few iterations of each: intervals are those of medians.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median_low
from typing import TypeVar

from ...model import ratio
from ...model.frozen import dataclass
from . import directions
from .directions import Direction
from .experiment import Setting
from .link_times import Ends, LinkTimes
from .repeated_delays import Stopped

Candidate = TypeVar("Candidate", bound=Hashable)

#: In this part of all runs in which nothing is slow, something is named.
LEVEL = 0.01
#: So many cases must show it.
LEAST_CASES = 2
#: With fewer iterations a case does not count.
LEAST_TRIALS = 5
#: The least difference that counts: of a link against others, and of a rank's own delays as a part of the time.
LEAST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A candidate against the others: ``by_case``: case -> change, and ``counts``: case -> iterations."""

    by_case: Mapping[int, ratio.Interval]
    counts: Mapping[int, int]
    is_relative: bool = True

    @property
    def slower(self) -> tuple[int, ...]:
        """The cases in which it is slower."""
        return tuple(case for case, change in self.by_case.items() if change.low > LEAST)

    @property
    def lasts(self) -> bool:
        return len(self.slower) >= LEAST_CASES

    @property
    def value(self) -> float:
        """The middle of the cases that show it; of all, if none does."""
        return median_low([self.by_case[case].value for case in self.slower or self.by_case])

    @property
    def best(self) -> int:
        """The case that limits it most: what lasts is in every case."""
        return min(self.by_case, key=lambda case: self.by_case[case].high)

    @property
    def most(self) -> float:
        """It may be slower by so much."""
        return self.by_case[self.best].high

    def needed(self, limit: float) -> int | None:
        """Estimate how many iterations would show that it is slower by less than ``limit``, or by more."""
        return self.by_case[self.best].needed(self.counts[self.best], limit, self.is_relative)


def changes(
    samples: Mapping[int, Mapping[Candidate, Sequence[float]]], *, is_relative: bool
) -> dict[Candidate, Changes]:
    """Candidate -> its changes. ``samples``: case -> candidate -> one figure per iteration, in order: its time in units of that of
    the others, or, not ``is_relative``, what it costs beyond them."""
    counts = {
        candidate: {case: len(own[candidate]) for case, own in samples.items() if len(own.get(candidate, ())) >= LEAST_TRIALS}
        for candidate in dict.fromkeys(candidate for own in samples.values() for candidate in own)
    }  # fmt: skip
    counts = {candidate: known for candidate, known in counts.items() if known}
    return {
        candidate: Changes(
            by_case={case: _change(samples[case][candidate], len(counts), len(known), is_relative) for case in known},
            counts=known,
            is_relative=is_relative,
        )
        for candidate, known in counts.items()
    }


def _change(figures: Sequence[float], candidates: int, cases: int, is_relative: bool) -> ratio.Interval:
    """``2 *``: an interval has two ends."""
    pairs = math.comb(max(cases, LEAST_CASES), LEAST_CASES)
    level = min(0.05, 2 * math.sqrt(LEVEL / (candidates * pairs)))
    others = [1.0 if is_relative else 0.0] * len(figures)
    change = ratio.change(others, figures, level=level, in_turn=True, is_relative=is_relative)
    assert change is not None  # LEAST_TRIALS
    return change


#: None is slow if none can be slower than the others by more than this.
EQUAL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """A rank whose own delays take ``cost`` of the time beyond those of the others, in ``cases`` of ``judged`` cases."""

    rank: int
    cost: float
    cases: int
    judged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link that carries ``rate`` of ``usual`` bits/s beyond its bucket, in ``cases`` of ``judged`` cases.

    ``cost``: at least so much of the time. ``is_probed``: the probe shows it too.
    """

    sender: int
    receiver: int
    factor: float
    rate: float
    usual: float
    cost: float
    cases: int
    judged: int
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """``probed``: directions that the probe shows to be slow, that the cases use, and that their iterations do not show.

    ``judged``: cases in which ranks or links were compared. ``hidden``: a link or a rank may be slower by so much without being
    named, which about ``needed`` iterations would show; None: not known.
    """

    stopped: tuple[Stopped, ...] = ()
    late: tuple[LateRank, ...] = ()
    links: tuple[SlowLink, ...] = ()
    probed: tuple[Direction, ...] = ()
    judged: int = 0
    hidden: float | None = None
    needed: int | None = None

    def __bool__(self) -> bool:
        return bool(self.stopped or self.late or self.links)

    @property
    def is_resolved(self) -> bool:
        return self.hidden is not None and self.hidden <= EQUAL


def stragglers(
    delays: Mapping[int, Mapping[int, Sequence[float]]], links: Mapping[int, LinkTimes], stopped: Iterable[Stopped],
    used: Iterable[Ends], setting: Setting,
) -> Stragglers:  # fmt: skip
    """``delays``, ``links``: by case; ``used``: links that messages passed."""
    stopped, used = tuple(stopped), set(used)
    ranks = changes(delays, is_relative=False)
    pairs = changes({case: times.factors for case, times in links.items()}, is_relative=True)
    slow = _probed(setting.link.directions)
    named = tuple(_links(pairs, links, slow, setting))
    away = {stop.rank for stop in stopped}
    late = tuple(
        LateRank(rank=rank, cost=change.value, cases=len(change.slower), judged=len(change.by_case))
        for rank, change in sorted(ranks.items())
        if change.lasts and rank not in away
    )
    open_changes = [change for change in (*ranks.values(), *pairs.values()) if not change.lasts]
    worst = max(open_changes, key=lambda change: change.most, default=None)
    ends = {(link.sender, link.receiver) for link in named}
    return Stragglers(
        stopped=stopped,
        late=late,
        links=named,
        probed=tuple(direction for link, direction in slow.items() if link in used - ends),
        judged=max((len(change.by_case) for change in (*ranks.values(), *pairs.values())), default=0),
        hidden=worst.most if worst else None,
        needed=worst.needed(EQUAL) if worst and worst.most > EQUAL else None,
    )


def _probed(known: Sequence[Direction]) -> dict[Ends, Direction]:
    """The directions that the probe shows to be slow."""
    compared = directions.changes(known)
    return {(link.sender, link.receiver): link for link, change in compared if change.low > LEAST}


def _links(
    changes: Mapping[Ends, Changes],
    links: Mapping[int, LinkTimes],
    probed: Mapping[Ends, Direction],
    setting: Setting,
) -> Iterable[SlowLink]:
    """Yield what the cases and the probe show of each link; the probe counts as one case.

    Nodes of one host without shaped links have no link between them.
    """
    total_s = sum(times.total_s for times in links.values()) or 1.0  # a bundle may claim that no time passed
    betas = [direction.beta for direction in setting.link.directions if direction.beta and not direction.is_internal]
    for link, change in sorted(changes.items()):
        slower = [links[case] for case in change.slower]
        cost = sum(times.extra_s.get(link, 0.0) for times in links.values()) / total_s
        is_memory = not setting.link.spec and setting.hosts.get(link[0], "") == setting.hosts.get(link[1]) != ""
        if is_memory or not slower or not (change.lasts or link in probed) or cost < ratio.MARGIN:
            continue
        rate = max(slower, key=lambda times: times.sizes[link]).rates[link]
        yield SlowLink(
            sender=link[0], receiver=link[1], factor=1 + change.value, rate=rate,
            usual=8 / min(betas) if betas else rate * (1 + change.value), cost=cost, cases=len(slower),
            judged=len(change.by_case), is_probed=link in probed,
        )  # fmt: skip
