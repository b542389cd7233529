"""Repeated delays: ranks that do not run, the latest sender of each round against chance, and links slower than the others.

Ranks that do not run are compared in all iterations. For the others only comparable ranks are compared: groups in whose
iterations every rank sends and receives equally many messages and bytes in every step, so that chance is 1/p. In trees, stars
and uneven shares a slow rank looks like one with more work: they are left out. A rank's own delay is the time from its last
message (or the start) to its next step, without that for which something that it sent was still under way: it did not wait then.
The time in which a process did not run counts neither as its own delay nor as time of its links.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.frozen import dataclass, replace
from . import statistics
from .dependencies import Pattern, Stage
from .gaps import Gaps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .experiment import Case
    from .samples import Spans, Transfers
    from .statistics import Floats

#: A rank is a straggler if chance explains it less often than this (over all ranks), and it costs at least ``COST``.
LEVEL = 0.01
COST = 0.05
#: What a rank costs is measured without this part of the iterations, in which it costs most: as a fault does that holds it once.
RARE = 0.2
#: A link is slow if its transfers take SLOW times as long as the others, in the part OFTEN of the iterations: a fault may begin
#: after the run.
SLOW = 1.3
OFTEN = 0.5
#: A link is as fast as others if its transfers take at most so many times as long.
USUAL = 1.1
#: A transfer is not compared if one of its ends did not run for more than this part of it.
_RAN = 0.1
#: A transfer is compared if its longest possible time is at most so many times its shortest.
_SURE = 1.25
#: With fewer iterations than this, no link is judged.
LEAST_TRIALS = 5
#: Bytes of two ranks are equal if they differ by no more: shares cut by quotient and remainder, some elements each.
_EVEN = 64
_PART = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A step of the schedule: one stage of each rank of a group."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How often each rank was the latest by its own doing, of ``count`` rounds, and how long the others waited for it again and
    again: in the iterations in which they waited longest as long as in the others.

    ``trials``: in how many of ``of_trials`` it was the latest over all rounds together: rounds of an iteration go together.
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
    """The rank that was latest most often. ``share`` of ``count`` rounds, ``chance``; ``p``: by chance alone, iteration by
    iteration, over all ranks. ``cost``: the part of the measured time that the others waited for it, beyond what is usual.
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
    """Transfers over this link take ``factor`` times as long as others.

    ``is_sender_usual``: the sender's messages to another rank, no smaller than these, take no longer than others;
    ``is_receiver_usual``: so do those that the receiver gets from another rank. False: not known.
    """

    sender: int
    receiver: int
    factor: float
    is_sender_usual: bool = False
    is_receiver_usual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A rank that did not run for ``share`` of the measured time, beyond what is usual. ``waited``: for a CPU, mostly."""

    rank: int
    share: float
    waited: bool


def stopped(cases: Sequence[Spans], gaps: Gaps, hosts: Mapping[int, str]) -> tuple[Stopped, ...]:
    """Ranks that do not run for COST of the time beyond what is usual, and more than the others too often for chance.

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
        share = float((table[spot] - np.median(np.delete(table, spot, axis=0), axis=0)).sum() / sum(whole))
        p = statistics.above_chance(int((worst == spot).sum()), len(whole), 1 / len(ranks)) * len(ranks)
        if share >= COST and p < LEVEL:
            result.append(Stopped(rank=rank, share=share, waited=gaps.waited(rank)))
    return tuple(result)


def rounds(
    comparable: Sequence[Sequence[Round]],
    moved: Transfers,
    pattern: Pattern,
    rows: NDArray[np.int64],
    spots: NDArray[np.int64],
    gaps: Gaps,
) -> Rounds:
    """Over the iterations ``spots`` of the pattern, whose rows in ``moved`` are ``rows``: other iterations have an explanation."""
    import numpy as np

    result = Rounds(hits={}, trials={}, waited_s={}, expected={})
    count = 0
    arrived = moved.end[rows[spots]]
    for group in comparable:
        ranks = [stage.rank for stage in group[0].stages]
        own = np.stack(
            [_own(round_, number, group, pattern, spots, moved, arrived, gaps) for number, round_ in enumerate(group)]
        )
        extra = own.max(axis=1) - np.median(own, axis=1)  # own: [round, rank, iteration]
        worst, over_all = own.argmax(axis=1), own.sum(axis=0).argmax(axis=0)
        for spot, rank in enumerate(ranks):
            own_rounds = worst == spot
            result.hits[rank] = result.hits.get(rank, 0) + int(own_rounds.sum())
            result.trials[rank] = result.trials.get(rank, 0) + int((over_all == spot).sum())
            waited_s = _repeated(np.where(own_rounds, extra, 0.0).sum(axis=0))
            result.waited_s[rank] = result.waited_s.get(rank, 0.0) + waited_s
            result.expected[rank] = result.expected.get(rank, 0.0) + worst.size / len(ranks)
        count += worst.size
    total = float((pattern.finish - pattern.begin).max(axis=1)[spots].sum())
    return replace(result, count=count, of_trials=len(spots), total_s=total)


def _repeated(waited: Floats) -> float:
    """The sum over all iterations, if the costliest RARE of them cost as much as the others; 0 for a single one."""
    import numpy as np

    usual = np.sort(waited)[: len(waited) - math.ceil(RARE * len(waited))]
    return float(usual.mean()) * len(waited) if usual.size else 0.0


def latest(cases: list[Rounds]) -> Latest | None:
    """Over all cases; None if no round could be compared."""
    import numpy as np

    ranks = sorted({rank for case in cases for rank in case.hits})
    if len(ranks) < 2:
        return None
    hits = {rank: sum(case.hits.get(rank, 0) for case in cases) for rank in ranks}
    chances = {rank: sum(case.expected.get(rank, 0.0) for case in cases) for rank in ranks}
    worst = max(ranks, key=lambda rank: hits[rank] / max(chances[rank], 1e-9))
    compared = [case for case in cases if worst in case.hits]
    took = sum(case.count for case in compared)
    chance = chances[worst] / took
    trials = sum(case.of_trials for case in compared)
    p = statistics.above_chance(sum(case.trials.get(worst, 0) for case in compared), trials, chance) * len(ranks)
    waited = {rank: sum(case.waited_s.get(rank, 0.0) for case in cases) for rank in ranks}
    usual = float(np.median([waited[rank] for rank in ranks if rank != worst]))
    total = sum(case.total_s for case in cases)
    cost = max(0.0, waited[worst] - usual) / total if total else 0.0
    return Latest(rank=worst, share=hits[worst] / took, chance=chance, count=took, p=min(p, 1.0), cost=cost)


def slow_links(
    comparable: Sequence[Sequence[Round]],
    moved: Transfers,
    pattern: Pattern,
    rows: NDArray[np.int64],
    spots: NDArray[np.int64],
    gaps: Gaps,
) -> list[SlowLink]:
    """Links whose transfers take longer than the other transfers of the same round, once both ends are ready and run.

    They are compared with a quick transfer of the round, for both links of a node may be slow.
    Rounds in which a rank has several messages in flight are left out: later messages wait for earlier ones.
    """
    import numpy as np

    ratios: dict[tuple[int, int], list[Floats]] = {}
    sizes: dict[tuple[int, int], list[int]] = {}
    for group in comparable:
        arrived: dict[tuple[int, int], Floats] = {}
        for round_ in group:
            columns = [column for stage in round_.stages for column in stage.columns]
            links = [(int(moved.peer[column]), int(moved.rank[column])) for column in columns]
            ends = moved.end[rows[spots]][:, columns]
            if len(columns) == len(round_.stages) and len(columns) >= 3 and len(spots) >= LEAST_TRIALS:
                entered = {stage.rank: pattern.entered[spots, stage.number] for stage in round_.stages}
                took = np.stack(
                    [
                        _seconds(gaps, link, entered, arrived.get(link), ends[:, place])
                        for place, link in enumerate(links)
                    ],
                    axis=1,
                )
                quick = _quick(took)
                for place, link in enumerate(links):
                    ratios.setdefault(link, []).append(took[:, place] / quick)
                    sizes.setdefault(link, []).append(int(moved.size[columns[place]]))
            arrived |= {link: ends[:, place] for place, link in enumerate(links)}
    by_trial = {link: _medians(np.stack(by_round, axis=1)) for link, by_round in sorted(ratios.items())}
    judged = {link: factors for link, factors in by_trial.items() if factors.size >= LEAST_TRIALS}
    usual = {link: min(sizes[link]) for link, factors in judged.items() if float(np.median(factors)) <= USUAL}
    return [
        _slow_link(link, factors[factors >= SLOW], max(sizes[link]), usual)
        for link, factors in judged.items()
        if float((factors >= SLOW).mean()) >= OFTEN
    ]


def _slow_link(link: tuple[int, int], factors: Floats, size: int, usual: Mapping[tuple[int, int], int]) -> SlowLink:
    """``size``: its largest message; ``usual``: links that are as fast as others, with their smallest message."""
    import numpy as np

    sender, receiver = link
    is_usual = (
        any(other[end] == link[end] and other != link and least >= size for other, least in usual.items())
        for end in (0, 1)
    )
    is_sender_usual, is_receiver_usual = is_usual
    return SlowLink(
        sender=sender, receiver=receiver, factor=float(np.median(factors)),
        is_sender_usual=is_sender_usual, is_receiver_usual=is_receiver_usual,
    )  # fmt: skip


def _seconds(
    gaps: Gaps, link: tuple[int, int], entered: Mapping[int, Floats], before: Floats | None, end: Floats
) -> Floats:
    """The seconds of a transfer, from the moment at which both ends were ready; nan where they are not known.

    ``before``: when the message before arrived over the same link. They are not known where the message may have been on
    its way before its receiver had reached it, or where an end did not run: how far it came meanwhile is not recorded.
    """
    import numpy as np

    sender, receiver = link
    latest = np.maximum(entered[sender], entered[receiver])
    earliest = np.minimum(entered[sender] if before is None else np.maximum(entered[sender], before), latest)
    lost = np.maximum(*(gaps.within(rank, earliest, end) for rank in link))
    is_known = (end - earliest <= _SURE * (end - latest)) & (lost <= _RAN * (end - latest))
    seconds: Floats = np.where(is_known, end - latest, np.nan)
    return seconds


def _quick(took: Floats) -> Floats:
    """Of each iteration a quick transfer, as a third of them are; nan with fewer than three transfers."""
    import numpy as np

    known = np.isfinite(took).sum(axis=1)
    ordered = np.sort(took, axis=1)  # nan last
    quick = ordered[np.arange(len(ordered)), np.maximum(1, (np.maximum(known, 1) - 1) // 3)]
    result: Floats = np.where((known >= 3) & (quick > 0), quick, np.nan)
    return result


def _medians(ratios: Floats) -> Floats:
    """The median of each row that has a number."""
    import numpy as np

    rows = ratios[np.isfinite(ratios).any(axis=1)]
    medians: Floats = np.nanmedian(rows, axis=1) if rows.size else np.empty(0)
    return medians


def _own(
    round_: Round, number: int, group: Sequence[Round], pattern: Pattern, spots: NDArray[np.int64], moved: Transfers, arrived: Floats,
    gaps: Gaps,
) -> Floats:  # fmt: skip
    """[rank, iteration]: the ranks' own delays before they entered the round."""
    import numpy as np

    delays = []
    for stage in round_.stages:
        since = pattern.begin[spots, pattern.ranks.index(stage.rank)]
        if number:
            before = [column for other in group[number - 1].stages for column in other.columns]
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
    own = [Round(stages=tuple(stages_of_round)) for _, stages_of_round in sorted(stages.items())]
    return own if all(_even(round_, group, moved) for round_ in own) else []


def _even(round_: Round, group: tuple[int, ...], moved: Transfers) -> bool:
    """Whether all ranks of the group send and receive the same amount."""
    columns = [column for stage in round_.stages for column in stage.columns]
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
