"""Computes when the collectives of a replayed sequence start: each waits for others, and for a gap that stands for computing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...model.frozen import dataclass, field
from ...rank.exchange import cases

#: The collective before, among those in which the rank takes part.
LAST = -1
#: A start that is late by more than this moves the schedule of gaps from start to start: later starts do not catch up.
CATCH_UP_S = 0.001
#: The gap is this many times as long as filling and checking take, and longer by SPARE_S; else the iteration is not verified.
SPARE, SPARE_S = 2.0, 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Start ``seconds`` after the end (or the start) of the collective that is ``back`` places before.

    0 places: after the start of the sequence.
    """

    back: int
    seconds: float
    is_from_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    case: cases.Case
    step: int
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a case on the slowest rank: to fill its inputs, to check its result, and of an iteration."""

    fill_s: float = 0.0
    check_s: float = 0.0
    run_s: float = 0.0


def is_paced(planned: Iterable[cases.Case]) -> bool:
    """Return whether an iteration of these cases has a gap before it, or depends on others."""
    return any(case.item.after or any(case.item.gaps) for case in planned)


def concurrent(planned: Sequence[cases.Case]) -> tuple[tuple[cases.Case, ...], ...]:
    """The cases whose buffers exist at the same time: all of a sequence, otherwise those that alternate."""
    if is_paced(planned) and all(case.stride == 1 for case in planned):
        return (tuple(planned),)
    return tuple(cases.turns(planned))


def iterations(planned: Iterable[cases.Case]) -> tuple[Iteration, ...]:
    made = [
        Iteration(case=case, step=case.first_step + index * case.stride, waits=_waits(case.item, index))
        for case in planned
        for index in range(case.item.trials)
    ]
    return tuple(sorted(made, key=lambda iteration: iteration.step))


def _waits(item: cases.Item, index: int) -> tuple[Wait, ...]:
    if item.after:
        return tuple(Wait(back=back, seconds=ms / 1e3) for back, ms in item.after)
    return (Wait(back=LAST, seconds=item.gaps[index] / 1e3, is_from_start=item.gap_from == "start"),)


@dataclass(slots=True)
class Schedule:
    """The times of one rank, in seconds of one clock. ``begin``: the start of the sequence.

    Spans are (start, end) by place in the sequence, None where this rank takes no part.
    """

    begin: float
    spans: list[tuple[float, float] | None] = field(default_factory=list)

    def due(self, waits: Sequence[Wait]) -> float:
        """Return when the next collective starts; the last end where it waits for collectives of other ranks alone."""
        times = [time + wait.seconds for wait in waits if (time := self._time(wait)) is not None]
        return max(times, default=self._last()[1])

    def add(self, start: float, end: float, due: float) -> None:
        """Enter a collective that was ``due``. The small delays of starts do not add up."""
        self.spans.append((due if due <= start <= due + CATCH_UP_S else start, end))

    def skip(self) -> None:
        self.spans.append(None)

    def _time(self, wait: Wait) -> float | None:
        if wait.back == 0 or wait.back > len(self.spans):
            return self.begin
        span = self._last() if wait.back == LAST else self.spans[-wait.back]
        return span[0 if wait.is_from_start else 1] if span else None

    def _last(self) -> tuple[float, float]:
        """The last collective in which this rank took part."""
        return next((span for span in reversed(self.spans) if span), (self.begin, self.begin))


def verified(sequence: Sequence[Iteration], costs: Mapping[int, Costs]) -> tuple[bool, ...]:
    """Return which iterations can be verified without a delay of the sequence. ``costs``: by the number of the case.

    In the gap before an iteration, the result before it is checked and its inputs are filled. Every rank comes to the same
    choice, because inputs that one rank has not filled make the results of all others wrong.
    """
    fits = [index == 0 or _fits(sequence, costs, index) for index in range(len(sequence))]
    return tuple(filled and checked for filled, checked in zip(fits, [*fits[1:], True], strict=True))


def _fits(sequence: Sequence[Iteration], costs: Mapping[int, Costs], index: int) -> bool:
    before, after = costs[sequence[index - 1].case.number], costs[sequence[index].case.number]
    least = max(_slacks(sequence[index].waits, before.run_s), default=0.0)
    return least >= SPARE * (before.check_s + after.fill_s) + SPARE_S


def _slacks(waits: Iterable[Wait], run_s: float) -> Iterator[float]:
    """Yield for each wait the seconds between the end of the collective before and the next start, at least."""
    for wait in waits:
        if wait.back in (LAST, 1):
            yield wait.seconds - (run_s if wait.is_from_start else 0.0)
