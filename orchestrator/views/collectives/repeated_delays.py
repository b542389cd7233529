"""Who is late again and again: the latest sender of each round against chance, and links that are slower than the others.

Only what is alike is compared: groups in whose trials every rank sends and receives equally many messages and bytes in
every step, so that chance is 1/p. Of trees, stars and uneven shares the records cannot tell a slow rank from one that
has more to do: nothing is said of them. A rank's own delay is the time from its last message (or the start) to its next
step, without that for which something that it sent was still under way: it waited for nobody then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import statistics
from .dependencies import Pattern
from .equivalent_ranks import Round

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .samples import Transfers
    from .statistics import Floats

#: A rank is a straggler if chance explains it less often than this (over all ranks), and it costs at least ``COST``.
LEVEL = 0.01
COST = 0.05
#: A link is slow if its transfers take so much longer than those of the others, and longer at all in so many of the trials.
SLOW = 1.5
OFTEN = 0.9
#: In fewer trials than this, often means nothing.
LEAST_TRIALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How often each rank was the latest by its own doing, of ``count`` rounds, and how long the others waited for it.

    ``trials``: in how many of ``of_trials`` it was the latest over all rounds together: rounds of a trial go together.
    """

    hits: dict[int, int]
    trials: dict[int, int]
    waited_s: dict[int, float]
    expected: dict[int, float]
    count: int = 0
    of_trials: int = 0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The rank that was latest most often. ``share`` of ``count`` rounds, ``chance``; ``p``: by chance alone, trial by
    trial, over all ranks. ``cost``: the part of the measured time that the others waited for it, beyond what is usual.
    """

    rank: int
    share: float
    chance: float
    count: int
    p: float
    cost: float

    @property
    def straggler(self) -> bool:
        return self.p < LEVEL and self.cost >= COST


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """Transfers over it take ``factor`` times those of the others. ``ranks``: whom all slow links share, if they do."""

    sender: int
    receiver: int
    factor: float


def rounds(
    alike: Sequence[Sequence[Round]], moved: Transfers, seen: Pattern, rows: NDArray[np.int64], spots: NDArray[np.int64]
) -> Rounds:
    """Over the trials ``spots`` (of ``seen``, whose trials are ``rows`` of ``moved``): the others have their own explanation."""
    import numpy as np

    found = Rounds(hits={}, trials={}, waited_s={}, expected={})
    count = 0
    arrived = moved.end[rows[spots]]
    for group in alike:
        ranks = [stage.rank for stage in group[0].stages]
        own = np.stack([_own(one, number, group, seen, spots, moved, arrived) for number, one in enumerate(group)])
        extra = own.max(axis=1) - np.median(own, axis=1)  # own: [round, rank, trial]
        worst, over_all = own.argmax(axis=1), own.sum(axis=0).argmax(axis=0)
        for spot, rank in enumerate(ranks):
            mine = worst == spot
            found.hits[rank] = found.hits.get(rank, 0) + int(mine.sum())
            found.trials[rank] = found.trials.get(rank, 0) + int((over_all == spot).sum())
            found.waited_s[rank] = found.waited_s.get(rank, 0.0) + float(extra[mine].sum())
            found.expected[rank] = found.expected.get(rank, 0.0) + worst.size / len(ranks)
        count += worst.size
    total = float((seen.finish - seen.begin).max(axis=1)[spots].sum())
    return replace(found, count=count, of_trials=len(spots), total_s=total)


def latest(found: list[Rounds]) -> Latest | None:
    """Over all cases; None where no round could be compared."""
    import numpy as np

    ranks = sorted({rank for one in found for rank in one.hits})
    if len(ranks) < 2:
        return None
    hits = {rank: sum(one.hits.get(rank, 0) for one in found) for rank in ranks}
    chances = {rank: sum(one.expected.get(rank, 0.0) for one in found) for rank in ranks}
    worst = max(ranks, key=lambda rank: hits[rank] / max(chances[rank], 1e-9))
    mine = [one for one in found if worst in one.hits]
    took = sum(one.count for one in mine)
    chance = chances[worst] / took
    trials = sum(one.of_trials for one in mine)
    p = statistics.above_chance(sum(one.trials.get(worst, 0) for one in mine), trials, chance) * len(ranks)
    waited = {rank: sum(one.waited_s.get(rank, 0.0) for one in found) for rank in ranks}
    usual = float(np.median([waited[rank] for rank in ranks if rank != worst]))
    total = sum(one.total_s for one in found)
    cost = max(0.0, waited[worst] - usual) / total if total else 0.0
    return Latest(rank=worst, share=hits[worst] / took, chance=chance, count=took, p=min(p, 1.0), cost=cost)


def slow_links(
    alike: Sequence[Sequence[Round]], moved: Transfers, seen: Pattern, rows: NDArray[np.int64], spots: NDArray[np.int64]
) -> list[SlowLink]:
    """Links whose transfers take longer than those of the others of the same round, once both ends are there.

    Rounds in which a rank has several messages under way are left out: the later of them wait for the earlier.
    """
    import numpy as np

    ratios: dict[tuple[int, int], list[Floats]] = {}
    for one in (one for group in alike for one in group):
        columns = [column for stage in one.stages for column in stage.columns]
        if len(columns) != len(one.stages) or len(columns) < 3 or len(spots) < LEAST_TRIALS:
            continue
        entered = {stage.rank: seen.entered[:, stage.number] for stage in one.stages}
        links = [(int(moved.peer[column]), int(moved.rank[column])) for column in columns]
        there = [np.maximum(entered[a], entered[b])[spots] for a, b in links]
        took = moved.end[rows[spots]][:, columns] - np.stack(there, axis=1)
        middle = np.median(took, axis=1)
        if not (middle > 0).all():
            continue
        for spot, link in enumerate(links):
            ratios.setdefault(link, []).append(took[:, spot] / middle)
    found = []
    for (a, b), each in sorted(ratios.items()):
        by_trial = np.median(np.stack(each, axis=1), axis=1)
        factor = float(np.median(by_trial))
        if factor >= SLOW and float((by_trial > SLOW / 1.25).mean()) >= OFTEN:
            found.append(SlowLink(sender=a, receiver=b, factor=factor))
    return found


def _own(
    one: Round, number: int, group: Sequence[Round], seen: Pattern, spots: NDArray[np.int64], moved: Transfers, arrived: Floats
) -> Floats:  # fmt: skip
    """[rank, trial]: the ranks' own delays before they entered the round."""
    import numpy as np

    each = []
    for stage in one.stages:
        since = seen.begin[spots, seen.ranks.index(stage.rank)]
        if number:
            before = [column for other in group[number - 1].stages for column in other.columns]
            mine = [column for column in before if stage.rank in (moved.rank[column], moved.peer[column])]
            since = arrived[:, mine].max(axis=1)
        each.append(np.maximum(seen.entered[spots, stage.number] - since, 0.0))
    return np.stack(each)
