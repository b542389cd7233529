"""The critical path of an iteration: the chain of transfers and steps that ended last, cut into what each part of it was.

From the last end the path leads back to what came last before it: of a rank's step the arrival of its last message, of an
arrival the later of both its ends, until the first start. The parts add up to the time of the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from .dependencies import Pattern
from .gaps import Gaps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .samples import Transfers

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
