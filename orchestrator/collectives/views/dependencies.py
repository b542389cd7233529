"""The dependencies within an iteration, by its records, and its critical path.

A receiver depends on its own step, and on the last event of its sender before. The records name no sends. The time shows that a sender
entered the step in which it sent: of what the sender usually does, the last thing before a message of this size must have left, for the
transfer to have ended when it usually ends.

The critical path is the chain of transfers and steps that ended last. From the last end it leads back to what came last before it: of a
rank's step the arrival of its last message, of an arrival the later of both its ends, until the first start. Its parts, each with what
it was, add up to the time of the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from .gaps import Gaps
from .samples import Spans, Transfers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...views.statistics import Floats
    from .samples import Transfers

#: The part of the shortest possible transfer time that is surely needed.
_SURE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of one rank that receives: ``columns`` of its transfers, ``before``: the rank's stage before, or None."""

    number: int
    rank: int
    op: int
    index: int
    columns: tuple[int, ...]
    before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """``ready``: column -> (kind, which) of what its sender did last before it sent.

    kinds: ``entry`` (of a stage), ``end`` (the last of a stage), ``begin`` (of the rank's timed region).
    ``entered``, ``left``: [trial, stage]: entry, and last arrival, of each stage. ``begin``, ``finish``: [trial, rank].
    """

    stages: tuple[Stage, ...]
    ready: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]
    entered: Floats
    left: Floats
    begin: Floats
    finish: Floats

    def at(self, kind: str, which: int) -> Floats:
        """The times of that event, one per iteration."""
        table = {"entry": self.entered, "end": self.left, "begin": self.begin, "finish": self.finish}[kind]
        when: Floats = table[:, which]
        return when

    def sent(self) -> Floats:
        """[trial, transfer]: when its sender was ready, by the records."""
        import numpy as np

        return np.stack([self.at(kind, which) for kind, which in self.ready], axis=1)

    def waiting(self, start: Floats, end: Floats) -> Floats:
        """[trial, transfer]: seconds of each record until its sender had reached the message; at most all of it.

        The rest is transfer. It includes what the same sender had to send before, where no record shows that.
        """
        import numpy as np

        waited: Floats = np.clip(self.sent() - start, 0.0, np.maximum(end - start, 0.0))
        return waited

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.stages if stage.rank == rank)


def pattern(moved: Transfers, spans: Spans, beta: float | None) -> Pattern | None:
    """``beta``: seconds per byte from the probe, if known. None without an iteration that has both records and steps, and where
    the records name receivers that are no ranks of the case.
    """
    import numpy as np

    both, rows, spots = np.intersect1d(moved.trials, spans.trials, return_indices=True)
    if both.size == 0 or not set(moved.rank.tolist()) <= set(spans.ranks):
        return None
    stages = _stages(moved)
    firsts = [stage.columns[0] for stage in stages]
    entered = moved.start[rows][:, firsts]
    left = np.stack([moved.end[rows][:, list(stage.columns)].max(axis=1) for stage in stages], axis=1)
    begin, finish = spans.start[spots], spans.end[spots]
    return Pattern(
        stages=stages,
        ready=_ready(moved, stages, spans.ranks, _usual(entered, begin), _usual(left, begin), _usual(begin, begin), rows, beta),
        ranks=spans.ranks,
        entered=entered,
        left=left,
        begin=begin,
        finish=finish,
    )  # fmt: skip


def rows(moved: Transfers, spans: Spans) -> NDArray[np.int64]:
    """The rows of the grid that the pattern uses."""
    import numpy as np

    common: NDArray[np.int64] = np.intersect1d(moved.trials, spans.trials, return_indices=True)[1]
    return common


def _usual(when: Floats, begin: Floats) -> Floats:
    """The median time since the first rank began."""
    import numpy as np

    middle: Floats = np.median(when - begin.min(axis=1)[:, None], axis=0)
    return middle


def _stages(moved: Transfers) -> tuple[Stage, ...]:
    columns_of: dict[tuple[int, int, int], list[int]] = {}
    for column in range(moved.rank.size):
        key = (int(moved.rank[column]), int(moved.op[column]), int(moved.index[column]))
        columns_of.setdefault(key, []).append(column)
    stages: list[Stage] = []
    last: dict[int, int] = {}
    for number, key in enumerate(sorted(columns_of)):
        rank, op, index = key
        stages.append(
            Stage(number=number, rank=rank, op=op, index=index, columns=tuple(columns_of[key]), before=last.get(rank))
        )
        last[rank] = number
    return tuple(stages)


def _ready(
    moved: Transfers, stages: tuple[Stage, ...], ranks: tuple[int, ...], entered: Floats, left: Floats, begin: Floats,
    rows: NDArray[np.int64], beta: float | None,
) -> tuple[tuple[str, int], ...]:  # fmt: skip
    import numpy as np

    ends = np.median(moved.end[rows] - moved.start[rows], axis=0) + entered[_owner(moved, stages)]
    least = _least(moved, rows, beta)
    moments: dict[int, list[tuple[float, str, int]]] = {}
    for spot, rank in enumerate(ranks):
        moments[rank] = [(float(begin[spot]), "begin", spot)]
    for stage in stages:
        known = moments.setdefault(stage.rank, [])
        known += [(float(entered[stage.number]), "entry", stage.number), (float(left[stage.number]), "end", stage.number)]  # fmt: skip
    chosen = []
    for column in range(moved.rank.size):
        limit = float(ends[column] - _SURE * least[column])
        known = moments.get(int(moved.peer[column])) or [(0.0, "begin", 0)]
        before = [moment for moment in known if moment[0] <= limit] or [min(known)]
        chosen.append(max(before, key=lambda moment: (moment[0], moment[1] == "entry"))[1:])
    return _in_step(moved, stages, chosen)


def _in_step(moved: Transfers, stages: tuple[Stage, ...], chosen: list[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Assume for all messages that they are sent in the step, by number, in which they are received, if most messages are.

    Times alone are misleading on a slow link, where messages queue.
    """
    numbers = {(stage.rank, stage.op, stage.index): stage.number for stage in stages}
    keys = zip(moved.peer.tolist(), moved.op.tolist(), moved.index.tolist(), strict=True)
    same = [numbers.get(key) for key in keys]
    known = [spot for spot, number in enumerate(same) if number is not None]
    agree = sum(chosen[spot] == ("entry", same[spot]) for spot in known)
    if 2 * agree <= len(known):
        return tuple(chosen)
    return tuple(moment if number is None else ("entry", number) for moment, number in zip(chosen, same, strict=True))


def _owner(moved: Transfers, stages: tuple[Stage, ...]) -> list[int]:
    owner = {column: stage.number for stage in stages for column in stage.columns}
    return [owner[column] for column in range(moved.rank.size)]


def _least(moved: Transfers, rows: NDArray[np.int64], beta: float | None) -> Floats:
    """Return per column the shortest time that its bytes can take: by the probe, else by the quickest transfer of all."""
    import numpy as np

    seconds = np.median(moved.seconds[rows], axis=0)
    size = np.maximum(moved.size, 1)
    quickest = float((seconds / size).min())
    rate = min(beta, quickest) if beta is not None and beta > 0 else quickest
    least: Floats = moved.size.astype(np.float64) * rate
    return least


#: The parts: a rank began late; it was between two messages (it combined chunks, or a send held it up); a message was on its
#: way although both ends had reached it; an end did not run.
KINDS = ("late start", "between messages", "transfer", "not running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the path. ``rank``: of a transfer the receiver, ``sender`` the other end; else ``sender`` is None."""

    kind: str
    rank: int
    seconds: float
    sender: int | None = None


def path(pattern: Pattern, moved: Transfers, rows: NDArray[np.int64], row: int, gaps: Gaps) -> list[Part]:
    """The parts of iteration ``row`` of the pattern, from its end to its start."""
    return [part for piece in _pieces(pattern, moved, rows, row) for part in _split(*piece, gaps)]


def longest(parts: Sequence[Part]) -> list[Part]:
    """The parts of a path, one for each rank or link of a kind, the longest first."""
    seconds: dict[tuple[str, int, int | None], float] = {}
    for part in parts:
        key = part.kind, part.rank, part.sender
        seconds[key] = seconds.get(key, 0.0) + part.seconds
    merged = (
        Part(kind=kind, rank=rank, sender=sender, seconds=spent) for (kind, rank, sender), spent in seconds.items()
    )
    return sorted(merged, key=lambda part: -part.seconds)


def shares(pattern: Pattern, moved: Transfers, rows: NDArray[np.int64], gaps: Gaps) -> dict[str, float]:
    """Kind -> seconds on the critical paths of all iterations."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for row in range(len(rows)):
        for part in path(pattern, moved, rows, row, gaps):
            seconds[part.kind] += part.seconds
    return seconds


def _pieces(
    pattern: Pattern, moved: Transfers, rows: NDArray[np.int64], row: int
) -> Iterator[tuple[str, int, int | None, float, float]]:
    """(kind, rank, sender, start, end), the last first. An order of events that contradicts itself ends the path early."""
    arrived = moved.end[rows[row]]
    spot = int(pattern.finish[row].argmax())
    first, rank, now = float(pattern.begin[row].min()), pattern.ranks[spot], float(pattern.finish[row, spot])
    own = pattern.stages_of(rank)
    stage = own[-1] if own else None
    for _ in range(len(pattern.stages) + 1):
        if stage is None:
            break
        column = max(stage.columns, key=lambda item: float(arrived[item]))
        end = min(float(arrived[column]), now)
        yield "between messages", rank, None, end, now
        sender, kind_and_which = int(moved.peer[column]), pattern.ready[column]
        ready, entered = float(pattern.at(*kind_and_which)[row]), float(pattern.entered[row, stage.number])
        now = min(max(ready, entered, first), end)
        yield "transfer", rank, sender, now, end
        before = stage.before
        if ready > entered:
            rank, before = sender, _stage_before(pattern, kind_and_which)
        stage = pattern.stages[before] if before is not None else None
    begin = min(max(float(pattern.begin[row, pattern.ranks.index(rank)]), first), now)
    yield "between messages", rank, None, begin, now
    yield "late start", rank, None, first, begin


def _stage_before(pattern: Pattern, moment: tuple[str, int]) -> int | None:
    """The stage whose end comes last before this moment of a sender, or is it; None: its start does."""
    kind, which = moment
    if kind == "entry":
        return pattern.stages[which].before
    return which if kind == "end" else None


def _split(kind: str, rank: int, sender: int | None, start: float, end: float, gaps: Gaps) -> Iterator[Part]:
    """A part, without the time in which one of its ends did not run; that is a part of its own."""
    import numpy as np

    ends: Sequence[int] = (rank,) if sender is None else (rank, sender)
    lost = {
        item: float(gaps.within(item, np.array([start]), np.array([end]))[0]) if gaps.of_rank.get(item) else 0.0
        for item in ends
    }
    stopped = max(ends, key=lambda item: lost[item])
    if lost[stopped] > 0:
        yield Part(kind="not running", rank=stopped, seconds=lost[stopped])
    if end - start > lost[stopped]:
        yield Part(kind=kind, rank=rank, sender=sender, seconds=end - start - lost[stopped])
