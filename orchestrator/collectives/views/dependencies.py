"""The dependencies within an iteration, by its records: a receiver's own step, and the last event of its sender before.

The records name no sends. The time shows that a sender entered the step in which it sent: of what the sender usually
does, the last thing before a message of this size must have left, for the transfer to have ended when it usually ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from .samples import Spans, Transfers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...views.statistics import Floats

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
    """If most messages are sent in the step in which they are received, by number, assume the same for all messages.

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
    """Per column the shortest time that its bytes can take: by the probe, else by the quickest transfer of all."""
    import numpy as np

    seconds = np.median(moved.seconds[rows], axis=0)
    size = np.maximum(moved.size, 1)
    quickest = float((seconds / size).min())
    rate = min(beta, quickest) if beta is not None and beta > 0 else quickest
    least: Floats = moved.size.astype(np.float64) * rate
    return least
