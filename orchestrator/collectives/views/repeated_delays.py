"""Ranks that do not run, and ranks that are late by their own doing, iteration by iteration.

Ranks that do not run are compared in all iterations. For the others only comparable ranks are compared: groups in whose
iterations every rank sends and receives equally many messages and bytes in every step. In trees, stars and uneven shares a slow
rank looks like one with more work: they are left out. A rank's own delay is the time from its last message (or the start) to its
next step, without that for which something that it sent was still under way: it did not wait then. The time in which a process
did not run counts neither as its own delay nor as time of its links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from ...views import statistics
from .dependencies import Pattern, Stage
from .gaps import Gaps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...views.statistics import Floats
    from .experiment import Case
    from .samples import Spans, Transfers

#: A rank has stopped if chance explains it less often than this (over all ranks), and it costs at least ``COST`` of the time; or if
#: it did not run for STOP_S in one iteration, without waiting for a CPU: no chance stops a process.
LEVEL = 0.01
COST = 0.05
STOP_S = 0.2
#: A step of the schedule: one stage of each rank of a group.
Round = tuple[Stage, ...]
#: Bytes of two ranks are equal if they differ by no more: shares cut by quotient and remainder, some elements each.
_EVEN = 64
_PART = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A rank that did not run for ``share`` of the measured time, beyond what is usual, and for ``longest_s`` in one iteration.

    ``waited``: for a CPU, mostly."""

    rank: int
    share: float
    longest_s: float
    waited: bool


def stopped(cases: Sequence[Spans], gaps: Gaps, hosts: Mapping[int, str]) -> tuple[Stopped, ...]:
    """Ranks that do not run for COST of the time beyond what is usual, and more than the others too often for chance, of the
    iterations in which any rank did not run; or for STOP_S at once.

    Waiting for a CPU counts only where the rank has its host to itself: elsewhere the ranks wait for each other.
    """
    import numpy as np

    lost: dict[int, list[float]] = {}
    whole: list[float] = []
    for spans in cases:
        if len(spans.ranks) < 2 or not gaps.is_watched(*spans.ranks):
            continue
        first, last = spans.start.min(axis=1), spans.end.max(axis=1)
        for rank in spans.ranks:
            shared = sum(host == hosts.get(rank) for host in hosts.values()) > 1
            own = gaps.without_waiting() if shared else gaps
            lost.setdefault(rank, [0.0] * len(whole)).extend(own.within(rank, first, last).tolist())
        whole += (last - first).tolist()
        for known in lost.values():
            known.extend([0.0] * (len(whole) - len(known)))
    if not whole or len(lost) < 2:
        return ()
    ranks, table = sorted(lost), np.array([lost[rank] for rank in sorted(lost)])
    worst = np.where(table.max(axis=0) > 0, table.argmax(axis=0), -1)
    result = []
    for spot, rank in enumerate(ranks):
        beyond = table[spot] - np.median(np.delete(table, spot, axis=0), axis=0)
        share, longest_s = float(beyond.sum() / sum(whole)), float(beyond.max())
        p = statistics.above_chance(int((worst == spot).sum()), int((worst >= 0).sum()), 1 / len(ranks)) * len(ranks)
        is_stop = longest_s >= STOP_S and not gaps.waited(rank)
        if is_stop or (share >= COST and p < LEVEL):
            result.append(Stopped(rank=rank, share=share, longest_s=longest_s, waited=gaps.waited(rank)))
    return tuple(result)


def own_delays(
    comparable: Sequence[Sequence[Round]], moved: Transfers, pattern: Pattern, rows: NDArray[np.int64], spots: NDArray[np.int64],
    gaps: Gaps,
) -> dict[int, list[float]]:  # fmt: skip
    """Rank -> its own delays beyond those of the others, as a part of each iteration.

    Over the iterations ``spots`` of the pattern, whose rows in ``moved`` are ``rows``.
    """
    import numpy as np

    result: dict[int, list[float]] = {}
    arrived = moved.end[rows[spots]]
    whole = np.maximum((pattern.finish.max(axis=1) - pattern.begin.min(axis=1))[spots], 1e-9)
    for group in comparable:
        delays = [
            _own(round_, number, group, pattern, spots, moved, arrived, gaps) for number, round_ in enumerate(group)
        ]
        own = np.stack(delays).sum(axis=0)  # [rank, iteration]
        for spot, stage in enumerate(group[0]):
            usual = np.median(np.delete(own, spot, axis=0), axis=0)
            result[stage.rank] = ((own[spot] - usual) / whole).tolist()
    return result


def _own(
    round_: Round, number: int, group: Sequence[Round], pattern: Pattern, spots: NDArray[np.int64], moved: Transfers, arrived: Floats,
    gaps: Gaps,
) -> Floats:  # fmt: skip
    """[rank, iteration]: the ranks' own delays before they entered the round."""
    import numpy as np

    delays = []
    for stage in round_:
        since = pattern.begin[spots, pattern.ranks.index(stage.rank)]
        if number:
            before = [column for other in group[number - 1] for column in other.columns]
            own = [column for column in before if stage.rank in (moved.rank[column], moved.peer[column])]
            since = arrived[:, own].max(axis=1)
        entered = pattern.entered[spots, stage.number]
        delays.append(np.maximum(entered - since - gaps.within(stage.rank, since, entered), 0.0))
    return np.stack(delays)


# --- comparable rounds ---------------------------------------------------------------------------------------------------


def comparable_rounds(case: Case, moved: Transfers, pattern: Pattern) -> list[list[Round]]:
    """The rounds of each group; none if its ranks send or receive different amounts in a round."""
    return [own for group in case.groups if len(group) > 1 for own in [_of_group(group, moved, pattern)] if own]


def _of_group(group: tuple[int, ...], moved: Transfers, pattern: Pattern) -> list[Round]:
    stages: dict[tuple[int, int], list[Stage]] = {}
    for stage in pattern.stages:
        if stage.rank in group:
            stages.setdefault((stage.op, stage.index), []).append(stage)
    own = [tuple(stages_of_round) for _, stages_of_round in sorted(stages.items())]
    return own if all(_even(round_, group, moved) for round_ in own) else []


def _even(round_: Round, group: tuple[int, ...], moved: Transfers) -> bool:
    """Return whether all ranks of the group send and receive the same amount."""
    columns = [column for stage in round_ for column in stage.columns]
    for ends in (moved.peer, moved.rank):
        messages: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for column in columns:
            messages[int(ends[column])] += 1
            sizes[int(ends[column])] += int(moved.size[column])
        if set(messages) != set(group) or len(set(messages.values())) > 1:
            return False
        if max(sizes.values()) - min(sizes.values()) > max(_EVEN, _PART * max(sizes.values())):
            return False
    return True
