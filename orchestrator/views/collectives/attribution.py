"""The cause of a slow iteration: from the records of its transfers back to where the delay began.

Each event of an iteration (a rank enters a step, a transfer ends) is compared with its usual time. From the last late
event the chain leads to the events that it waited for, as long as these were late as well. It ends at a rank that entered
late without waiting, or at a transfer that was slow although both its ends were in time. The cause is the end that did
nothing in the gap while the other continued. If neither continued, it is the end that returned first, for which the other
had to wait. If the receiver was in time and its sender continued, the wire may be the cause as well. Then the receiver
is the cause only if the next message was complete at once when it returned: a slow wire cannot deliver that.
Ranks that record when they did not run decide this directly: an end that did not run for most of the delay has stopped; if
both ends ran all the time, the link is the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass, replace
from .dependencies import Pattern
from .gaps import Gaps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .samples import Transfers
    from .statistics import Floats

#: An event carries the delay if it is late by at least this part of what its successor is.
_CARRIES = 0.5
#: A single delay is the cause if it is at least this part of the whole delay.
_EXPLAINS = 0.5
#: A transfer shorter than this part of its usual time had arrived before.
_AT_ONCE = 0.5
_SAME = 0.1
#: A moment that lies within this part of a gap from one of its ends belongs to that end.
_EDGE = 0.02
#: A rank that did not run for less than this part of a delay has run.
_RAN = 0.1
#: Fewer iterations have no usual time.
LEAST_TRIALS = 3

#: How the delay began.
KINDS = (
    "entered late", "stopped", "stopped sending", "stopped receiving", "link", "receiver or link", "either end", "ended late",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The cause of a slow iteration. ``rank``: None where only a link is the cause; ``peer``: the waiting rank, or the other end.

    ``link``: (sender, receiver) where the wire is, or may be, the cause. ``late_s``: the delay; ``index``: step of the schedule.
    ``either end``: ``rank`` or ``peer``; the records do not distinguish two ranks that exchange with each other.
    ``stopped``: the rank recorded that its process did not run; ``waited``: for a CPU, mostly.
    """

    kind: str
    rank: int | None
    peer: int | None
    index: int
    late_s: float
    link: tuple[int, int] | None = None
    waited: bool = False

    @property
    def sure(self) -> bool:
        return self.kind not in ("receiver or link", "either end")


@dataclass(frozen=True, slots=True)
class _Event:
    """kind: entry or end of a stage, begin or finish of a rank, arrival (which: a column)."""

    kind: str
    which: int


class Iterations:
    """The iterations of a case with the usual times of their events. ``rows``: the iterations of ``moved`` that the pattern has."""

    def __init__(self, moved: Transfers, pattern: Pattern, rows: NDArray[np.int64], gaps: Gaps | None = None) -> None:
        self._pattern, self._moved, self._gaps = pattern, moved, gaps or Gaps()
        self._arrived = moved.end[rows]
        self._first = pattern.begin.min(axis=1)
        self._usual: dict[_Event, float] = {}

    def __len__(self) -> int:
        return len(self._first)

    def attribution(self, row: int) -> Attribution | None:
        """None if there are too few iterations for usual times, nothing is late, or many small delays have added up.

        None also where the usual order of messages contradicts itself, which few iterations on a busy machine may yield.
        """
        start = self._latest(row)
        if start is None or len(self) < LEAST_TRIALS:
            return None
        event, passed = start, {start}
        while True:
            late = {cause: self._late(cause, row) for cause in self._causes(event)}
            causes = [cause for cause in late if late[cause] >= _CARRIES * self._late(event, row)]
            if not causes:
                grown = self._late(event, row) - max([0.0, *late.values()])
                whole = self._late(start, row)
                if grown < _EXPLAINS * whole:
                    return None
                return self._with_gaps(self._conclude(event, row), float(self._when(event)[row]))
            event = max(causes, key=lambda cause: self._when(cause)[row])
            if event in passed:
                return None
            passed.add(event)

    # --- events --------------------------------------------------------------------------------------------------------

    def _when(self, event: _Event) -> Floats:
        if event.kind == "arrival":
            arrived: Floats = self._arrived[:, event.which]
            return arrived
        return self._pattern.at(event.kind, event.which)

    def _late(self, event: _Event, row: int) -> float:
        """Seconds by which the event is later than usual; times count from the moment when the first rank began."""
        import numpy as np

        since = self._when(event) - self._first
        if event not in self._usual:
            self._usual[event] = float(np.median(since))
        return float(since[row]) - self._usual[event]

    def _latest(self, row: int) -> _Event | None:
        """The end of the rank that ended latest against its usual time; None if all were in time."""
        ends = [_Event("finish", spot) for spot in range(len(self._pattern.ranks))]
        worst = max(ends, key=lambda end: self._late(end, row))
        return worst if self._late(worst, row) > 0 else None

    def _causes(self, event: _Event) -> list[_Event]:
        """The events that must have happened before it."""
        pattern = self._pattern
        if event.kind == "arrival":
            own = [_Event("entry", pattern.stage_of[event.which]), _Event(*pattern.ready[event.which])]
            return own + [_Event("arrival", column) for column in self._message_before(event.which)]
        if event.kind == "end":
            return [_Event("arrival", column) for column in pattern.stages[event.which].columns]
        if event.kind == "entry":
            stage = pattern.stages[event.which]
            before = stage.before
            return [_Event("end", before) if before is not None else _Event("begin", self._spot(stage.rank))]
        if event.kind == "finish":
            stages = pattern.stages_of(pattern.ranks[event.which])
            return [_Event("end", stages[-1].number) if stages else _Event("begin", event.which)]
        return []

    def _message_before(self, column: int) -> list[int]:
        """The message that the same sender sent just before it, if no record shows that it continued in between."""
        pattern, moved = self._pattern, self._moved
        same = [
            other for other in self._sent_by(int(moved.peer[column])) if pattern.ready[other] == pattern.ready[column]
        ]
        before = [other for other in same if self._arrives(other) + self._moment(other) < self._arrives(column)]
        return sorted(before, key=self._arrives)[-1:]

    def _arrives(self, column: int) -> float:
        """When this transfer usually ends."""
        self._late(_Event("arrival", column), 0)
        return self._usual[_Event("arrival", column)]

    def _spot(self, rank: int) -> int:
        return self._pattern.ranks.index(rank)

    def _with_gaps(self, cause: Attribution, end: float) -> Attribution:
        """The cause by what the ranks recorded of themselves, where they did. ``end``: the moment at which the delay was over."""
        import numpy as np

        ranks = [rank for rank in dict.fromkeys((cause.rank, cause.peer, *(cause.link or ()))) if rank is not None]
        if cause.kind in ("entered late", "ended late"):  # it may have waited for a token, of which there is no record
            ranks = list(dict.fromkeys((*ranks, *self._pattern.ranks)))
        period = np.array([end - cause.late_s]), np.array([end])
        lost = {rank: float(self._gaps.within(rank, *period)[0]) / cause.late_s for rank in ranks}
        stopped = [rank for rank in ranks if lost[rank] >= _EXPLAINS]
        if len(stopped) == 1:
            waited = self._gaps.waited(stopped[0])
            peer = next((rank for rank in ranks if rank != stopped[0]), None)
            return replace(cause, kind="stopped", rank=stopped[0], peer=peer, link=None, waited=waited)
        if cause.link and self._gaps.is_watched(*ranks) and max(lost.values()) < _RAN:
            return replace(cause, kind="link", rank=None, peer=None)
        return cause

    # --- where the chain ends -------------------------------------------------------------------------------------------

    def _conclude(self, event: _Event, row: int) -> Attribution:
        if event.kind == "arrival":
            return self._between(event.which, row)
        late = self._late(event, row)
        if event.kind == "entry":
            stage = self._pattern.stages[event.which]
            return self._entered(stage.rank, stage.index, late, row, event)
        if event.kind == "end":
            return self._between(
                max(self._pattern.stages[event.which].columns, key=lambda c: self._arrived[row, c]), row
            )
        rank = self._pattern.ranks[event.which]
        kind = "entered late" if event.kind == "begin" else "ended late"
        if kind == "ended late":
            return self._entered(rank, -1, late, row, event)
        return Attribution(kind=kind, rank=rank, peer=self._waiter(rank, row), index=0, late_s=late)

    def _entered(self, rank: int, index: int, late: float, row: int, event: _Event) -> Attribution:
        """The rank left a step late although it had its messages: it did nothing, or it could not send."""
        blocked = [column for column in self._sent_by(rank) if self._blocks(column, event, late, row)]
        if blocked:
            return self._between(min(blocked, key=lambda column: self._arrived[row, column]), row)
        kind = "entered late" if event.kind == "entry" else "ended late"
        return Attribution(kind=kind, rank=rank, peer=self._waiter(rank, row), index=max(index, 0), late_s=late)

    def _blocks(self, column: int, event: _Event, late: float, row: int) -> bool:
        """Whether this transfer was late before its sender was: sent in time, but not complete when the sender continued."""
        back = float(self._when(event)[row]) + _EDGE * late
        return self._slowed(column, late, row) and bool(self._arrived[row, column] <= back)

    def _stood(self, rank: int, column: int, late: float, row: int) -> bool:
        """Whether a transfer of this rank with a third rank, not after this one, was sent in time and arrived late."""
        moved = self._moved
        link = (int(moved.peer[column]), int(moved.rank[column]))
        others = [other for other in self._sent_by(rank) if int(moved.rank[other]) not in link]
        others += [other for other in self._sent_to(rank) if int(moved.peer[other]) not in link]
        until = self._arrives(column) + self._moment(column)
        return any(self._slowed(other, late, row) for other in others if self._arrives(other) <= until)

    def _both_ways(self, link: tuple[int, int], late: float, row: int) -> bool:
        """Whether the message in the other direction was as slow: then either end may be the cause of both."""
        sender, receiver = link
        back = [column for column in self._sent_by(receiver) if int(self._moved.rank[column]) == sender]
        return any(self._slowed(column, late, row) for column in back)

    def _slowed(self, column: int, late: float, row: int) -> bool:
        """Whether the transfer was sent in time, its receive was posted in time, and it arrived late."""
        ends = (_Event(*self._pattern.ready[column]), _Event("entry", self._pattern.stage_of[column]))
        in_time = all(self._late(end, row) < _CARRIES * late for end in ends)
        return in_time and self._late(_Event("arrival", column), row) >= _CARRIES * late

    def _between(self, column: int, row: int) -> Attribution:
        """The cause of the first slow transfer: its sender, its receiver, or the wire."""
        sender, receiver = int(self._moved.peer[column]), int(self._moved.rank[column])
        index, link = int(self._moved.index[column]), (sender, receiver)
        late = self._late(_Event("arrival", column), row)
        ready = max(float(self._when(cause)[row]) for cause in self._causes(_Event("arrival", column)))
        end = float(self._arrived[row, column])
        gap = (min(max(end - late, ready), end), end)
        busy = {rank: self._busy(rank, column, row, gap) for rank in link}
        if busy[receiver] and not busy[sender]:
            return Attribution(kind="stopped sending", rank=sender, peer=receiver, index=index, late_s=late)
        if busy[receiver]:
            return Attribution(kind="link", rank=None, peer=None, index=index, late_s=late, link=link)
        stood = {rank: self._stood(rank, column, late, row) for rank in link}
        if stood[receiver] and not stood[sender]:
            return Attribution(kind="stopped receiving", rank=receiver, peer=sender, index=index, late_s=late)
        if stood[sender] and not stood[receiver] and not busy[sender]:
            return Attribution(kind="stopped sending", rank=sender, peer=receiver, index=index, late_s=late)
        if not busy[sender] and self._both_ways(link, late, row):
            return Attribution(kind="either end", rank=receiver, peer=sender, index=index, late_s=late, link=link)
        lead = gap[1] - self._back(sender, column, row, gap)
        if not busy[sender] and lead > self._moment(column):
            return Attribution(kind="stopped sending", rank=sender, peer=receiver, index=index, late_s=late)
        if not busy[sender] and (abs(lead) <= self._moment(column) or self._unseen(sender, column)):
            return Attribution(kind="either end", rank=receiver, peer=sender, index=index, late_s=late, link=link)
        if self._burst(column, row):
            return Attribution(kind="stopped receiving", rank=receiver, peer=sender, index=index, late_s=late)
        return Attribution(kind="receiver or link", rank=receiver, peer=sender, index=index, late_s=late, link=link)

    def _activity(self, rank: int, without: int, row: int) -> list[float]:
        """Every recorded moment of this rank in the iteration, except those of the transfer ``without``."""
        pattern = self._pattern
        moments = [float(pattern.at(kind, self._spot(rank))[row]) for kind in ("begin", "finish")]
        for stage in pattern.stages_of(rank):
            moments.append(float(pattern.entered[row, stage.number]))
            moments += [float(self._arrived[row, column]) for column in stage.columns if column != without]
        return sorted(moments)

    def _busy(self, rank: int, column: int, row: int, gap: tuple[float, float]) -> bool:
        """Whether the rank has a record well within the gap; a record at an edge may be the edge itself."""
        edge = _EDGE * (gap[1] - gap[0])
        return any(gap[0] + edge < t < gap[1] - edge for t in self._activity(rank, column, row))

    def _back(self, rank: int, column: int, row: int, gap: tuple[float, float]) -> float:
        """When the rank continued: its first record after the gap began."""
        edge = _EDGE * (gap[1] - gap[0])
        return min((t for t in self._activity(rank, column, row) if t > gap[0] + edge), default=float("inf"))

    def _unseen(self, sender: int, column: int) -> bool:
        """Whether the records cannot show that the sender continued after it was ready to send: as with a broadcast's root."""
        import numpy as np

        ready = self._pattern.at(*self._pattern.ready[column])
        later = (self._pattern.left[:, stage.number] - ready for stage in self._pattern.stages_of(sender))
        return not any(float(np.median(since)) > 0 for since in later)

    def _moment(self, column: int) -> float:
        """Two events are at the same time if less than this lies between them: a part of the usual transfer."""
        import numpy as np

        entered = self._pattern.entered[:, self._pattern.stage_of[column]]
        return _SAME * float(np.median(self._arrived[:, column] - entered))

    def _burst(self, column: int, row: int) -> bool:
        """Whether the next message over the same link, whose receive was posted at once, had already arrived."""
        import numpy as np

        moved = self._moved
        later = [
            other
            for other in np.flatnonzero((moved.rank == moved.rank[column]) & (moved.peer == moved.peer[column]))
            if moved.size[other] and (moved.op[other], moved.index[other]) > (moved.op[column], moved.index[column])
        ]
        if not later:
            return False
        stage = self._pattern.stage_of[later[0]]
        if self._pattern.stages[stage].before != self._pattern.stage_of[column]:
            return False
        took = self._arrived[:, later[0]] - self._pattern.entered[:, stage]
        return bool(took[row] < _AT_ONCE * np.median(took))

    def _sent_by(self, rank: int) -> list[int]:
        import numpy as np

        return [int(column) for column in np.flatnonzero(self._moved.peer == rank)]

    def _sent_to(self, rank: int) -> list[int]:
        import numpy as np

        return [int(column) for column in np.flatnonzero(self._moved.rank == rank)]

    def _waiter(self, rank: int, row: int) -> int | None:
        """The receiver that waited longest for it."""
        columns = self._sent_by(rank)
        if not columns:
            return None
        worst = max(columns, key=lambda column: self._late(_Event("arrival", column), row))
        return int(self._moved.rank[worst])
