"""Who is late again and again: the latest sender of each round against chance, and links that are slower than the others.

Only rounds in which every rank of a group receives are compared: there all do the same, so chance is 1/p. A rank's own
delay is the time from its last message (or the start) to its next step: it waited for nobody then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import statistics
from .pattern import Pattern, Stage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .samples import Transfers
    from .setting import Case
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
    """How often each rank was the latest by its own doing, of ``count`` rounds, and how long the others waited for it."""

    hits: dict[int, int]
    waited_s: dict[int, float]
    expected: dict[int, float]
    count: int = 0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The rank that was latest most often. ``share`` of ``count`` rounds, ``chance``; ``p``: by chance alone, over all ranks.

    ``cost``: the part of the measured time that the others waited for it.
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


def rounds(case: Case, seen: Pattern, usual: NDArray[np.bool_]) -> Rounds:
    """Over the trials that are ``usual`` ([trial]): the others have their own explanation."""
    import numpy as np

    hits: dict[int, int] = {}
    waited: dict[int, float] = {}
    expected: dict[int, float] = {}
    count = 0
    for stages in _complete(case, seen):
        own = np.stack([_own(seen, stage)[usual] for stage in stages], axis=1)
        ranks = [stage.rank for stage in stages]
        worst = own.argmax(axis=1)
        extra = own.max(axis=1) - np.median(own, axis=1)
        for spot, rank in enumerate(ranks):
            mine = worst == spot
            hits[rank] = hits.get(rank, 0) + int(mine.sum())
            waited[rank] = waited.get(rank, 0.0) + float(extra[mine].sum())
            expected[rank] = expected.get(rank, 0.0) + len(own) / len(ranks)
        count += len(own)
    total = float((seen.finish - seen.begin).max(axis=1)[usual].sum())
    return Rounds(hits=hits, waited_s=waited, expected=expected, count=count, total_s=total)


def latest(found: list[Rounds]) -> Latest | None:
    """Over all cases; None where no round could be compared."""
    count = sum(one.count for one in found)
    ranks = {rank for one in found for rank in one.hits}
    if not count or len(ranks) < 2:
        return None
    hits = {rank: sum(one.hits.get(rank, 0) for one in found) for rank in ranks}
    chances = {rank: sum(one.expected.get(rank, 0.0) for one in found) for rank in ranks}
    worst = max(sorted(ranks), key=lambda rank: hits[rank] / max(chances[rank], 1e-9))
    took = sum(sum(one.count for one in found if rank in one.hits) for rank in [worst])
    chance = chances[worst] / took
    total = sum(one.total_s for one in found)
    p = statistics.above_chance(hits[worst], took, chance) * len(ranks)
    waited = sum(one.waited_s.get(worst, 0.0) for one in found)
    return Latest(
        rank=worst, share=hits[worst] / took, chance=chance, count=took, p=min(p, 1.0), cost=waited / total if total else 0.0
    )  # fmt: skip


def slow_links(
    case: Case, moved: Transfers, seen: Pattern, rows: NDArray[np.int64], usual: NDArray[np.bool_]
) -> list[SlowLink]:
    """Links whose transfers take longer than those of the others of their size, once both ends are there."""
    import numpy as np

    took = (moved.end[rows] - np.maximum(moved.start[rows], seen.sent()))[usual]
    ratios: dict[tuple[int, int], list[Floats]] = {}
    for size in np.unique(moved.size[moved.size > 0]):
        columns = np.flatnonzero(moved.size == size)
        links = {(int(moved.peer[c]), int(moved.rank[c])) for c in columns}
        middle = np.median(took[:, columns], axis=1)
        if len(links) < 3 or len(took) < LEAST_TRIALS or not (middle > 0).all():
            continue
        for column in columns:
            link = (int(moved.peer[column]), int(moved.rank[column]))
            ratios.setdefault(link, []).append(took[:, column] / middle)
    found = []
    for (a, b), each in sorted(ratios.items()):
        by_trial = np.median(np.stack(each, axis=1), axis=1)
        factor = float(np.median(by_trial))
        if factor >= SLOW and float((by_trial > SLOW / 1.25).mean()) >= OFTEN:
            found.append(SlowLink(sender=a, receiver=b, factor=factor))
    return found


def _complete(case: Case, seen: Pattern) -> list[list[Stage]]:
    """The stages of each round in which every rank of a group of at least two receives."""
    found: dict[tuple[int, int, int], list[Stage]] = {}
    group_of = {rank: number for number, group in enumerate(case.groups) for rank in group}
    for stage in seen.stages:
        if stage.rank in group_of:
            found.setdefault((group_of[stage.rank], stage.op, stage.index), []).append(stage)
    return [stages for (group, _, _), stages in sorted(found.items()) if len(stages) == len(case.groups[group]) > 1]


def _own(seen: Pattern, stage: Stage) -> Floats:
    """The rank's own delay before it entered the stage, in each trial."""
    if stage.before is None:
        return seen.entered[:, stage.number] - seen.begin[:, seen.ranks.index(stage.rank)]
    return seen.entered[:, stage.number] - seen.left[:, stage.before]
