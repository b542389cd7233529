"""The gaps of a replayed sequence: the one that was wanted beside the one that was reached, computed again from the step records.

A gap starts at the end (or the start) of another collective of the same rank, as the plan says. A collective that is due while the
rank is still in the one before starts at the end of that one: its gap follows from the network, not from the replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...model import events
from ...model.event import History
from ...model.frozen import dataclass
from ...model.run import Run
from .experiment import Case, Setting

#: A gap is kept within this many seconds, or this share of it.
TOLERANCE_S, TOLERANCE = 0.001, 0.02
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGap:
    """The gap before one iteration, in seconds, on the rank whose start is farthest from the due time.

    ``is_held``: the rank was still in the collective before, and started at its end.
    """

    case: Case
    trial: int
    step: int
    rank: int
    wanted_s: float
    reached_s: float
    late_s: float
    is_held: bool

    @property
    def is_kept(self) -> bool:
        return abs(self.late_s) <= max(TOLERANCE_S, TOLERANCE * self.wanted_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGaps:
    """``wanted``: iterations of sequences; ``measured``: those whose records say when all their ranks started."""

    wanted: int
    measured: tuple[ReplayGap, ...]

    @property
    def worst(self) -> ReplayGap:
        return max(self.measured, key=lambda gap: abs(gap.late_s))

    @property
    def kept(self) -> int:
        return sum(gap.is_kept for gap in self.measured)

    @property
    def held(self) -> int:
        return sum(gap.is_held for gap in self.measured)


def replay_gaps(run: Run, setting: Setting) -> ReplayGaps | None:
    """None for a run without gaps."""
    sequences = list(_sequences(setting))
    if not sequences:
        return None
    begins = _begins(run.history)
    epoch = max((epoch for epoch, *_ in begins), default=0)
    spans = {
        (record.rank, record.step): (record.start, record.end)
        for record in run.files.steps()
        if record.epoch == epoch and record.step <= setting.last_step
    }
    measured = []
    for sequence in sequences:
        first = sequence[0][1]
        own = {rank: begin for (attempt, rank, step), begin in begins.items() if (attempt, step) == (epoch, first)}
        reader = _Reader(sequence, spans, own)
        measured += [gap for place in range(len(sequence)) if (gap := reader.worst(place))]
    return ReplayGaps(wanted=sum(map(len, sequences)), measured=tuple(measured))


def _sequences(setting: Setting) -> Iterator[list[tuple[Case, int]]]:
    """(case, step) of every sequence, in order: cases with gaps, and those between them that alternate or follow them."""
    if not any(case.is_paced for case in setting.cases):
        return
    parts = [setting.cases] if all(case.stride == 1 for case in setting.cases) else list(_turns(setting.cases))
    for part in parts:
        if any(case.is_paced for case in part):
            yield sorted(((case, step) for case in part for step in case.steps), key=lambda entry: entry[1])


def _turns(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    rest = cases
    while rest:
        yield rest[: rest[0].stride]
        rest = rest[rest[0].stride :]


def _begins(history: History) -> dict[tuple[int, int, int], float]:
    """(attempt, rank, first step) -> the start of a sequence by the rank's clock."""
    return {
        (event.epoch or 0, event.data.rank, event.data.step): event.data.begin
        for event in history.of(events.CollectiveSequence)
        if event.data.rank is not None and event.data.step is not None and event.data.begin is not None
    }


class _Reader:
    """One sequence. ``begins``: its start by rank; ``spans``: (rank, step) -> start and end."""

    def __init__(
        self, sequence: Sequence[tuple[Case, int]], spans: Mapping[tuple[int, int], Span], begins: Mapping[int, float]
    ) -> None:
        self._sequence, self._spans, self._begins = sequence, spans, begins

    def worst(self, place: int) -> ReplayGap | None:
        """None if a rank has no record of the iteration, or of what it waited for."""
        case = self._sequence[place][0]
        measured = [self._gap(place, rank) for rank in case.ranks]
        complete = [gap for gap in measured if gap is not None]
        return max(complete, key=lambda gap: abs(gap.late_s)) if complete and len(complete) == len(measured) else None

    def _gap(self, place: int, rank: int) -> ReplayGap | None:
        case, step = self._sequence[place]
        span, previous = self._spans.get((rank, step)), self._previous(place, rank)
        waits = list(self._waits(place, rank))
        if span is None or previous is None or any(since is None for since, _ in waits):
            return None
        due, wanted = max(
            ((since + wanted, wanted) for since, wanted in waits if since is not None), default=(previous[1], 0.0)
        )
        late = span[0] - max(due, previous[1])
        return ReplayGap(
            case=case, trial=case.steps.index(step) + 1, step=step, rank=rank, wanted_s=wanted,
            reached_s=span[0] - due + wanted, late_s=late, is_held=previous[1] > due + TOLERANCE_S,
        )  # fmt: skip

    def _waits(self, place: int, rank: int) -> Iterator[tuple[float | None, float]]:
        """(the time from which the gap counts, or None if it is not recorded; seconds) of everything that the rank waits for."""
        case, step = self._sequence[place]
        if not case.after:
            previous = self._previous(place, rank)
            since = None if previous is None else previous[0 if case.gap_from == "start" else 1]
            yield since, case.gap_s(case.steps.index(step))
        for back, ms in case.after:
            if back == 0 or back > place:
                yield self._begins.get(rank), ms / 1e3
            elif rank in self._sequence[place - back][0].ranks:
                span = self._spans.get((rank, self._sequence[place - back][1]))
                yield span[1] if span else None, ms / 1e3

    def _previous(self, place: int, rank: int) -> Span | None:
        """The collective of this rank before; at the first, the start of the sequence. None if it is not recorded."""
        for earlier in range(place - 1, -1, -1):
            case, step = self._sequence[earlier]
            if rank in case.ranks:
                return self._spans.get((rank, step))
        begin = self._begins.get(rank)
        return None if begin is None else (begin, begin)
