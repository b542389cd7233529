"""Finds when the processes of ranks did not run: stopped, out of CPU quota, or waiting for a busy CPU. Each rank recorded it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...model.frozen import dataclass, field
from ...model.run import StepRecord
from .experiment import Setting

if TYPE_CHECKING:
    from ...views.statistics import Floats

#: A process waited for a CPU if it was runnable in at least this part of the time in which it did not run.
_WAITED = 0.5
#: The thread that records a gap has slept so long of it by its own will.
_SLEPT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Rank -> (start, end, seconds that it waited for a CPU) of each gap, by the orchestrator's clock, in order.

    A rank that was not watched is absent: then nothing is known of it.
    """

    of_rank: Mapping[int, tuple[tuple[float, float, float], ...]] = field(default_factory=dict)

    def is_watched(self, *ranks: int) -> bool:
        return all(rank in self.of_rank for rank in ranks)

    def within(self, rank: int, start: Floats, end: Floats) -> Floats:
        """Seconds of each of the periods in which the rank did not run; 0 where nothing is known. Any equal shapes."""
        import numpy as np

        gaps = self.of_rank.get(rank, ())
        if not gaps:
            return np.zeros_like(start)
        moments = np.array([moment for gap in gaps for moment in gap[:2]])
        lost = np.cumsum([0.0, *(gap[1] - gap[0] for gap in gaps)])
        totals = np.repeat(lost, 2)[1:-1]  # before and after each gap
        overlap: Floats = np.interp(end, moments, totals) - np.interp(start, moments, totals)
        return np.maximum(overlap, 0.0)

    def without_waiting(self) -> Gaps:
        """Return the gaps without the time for which a rank waited for a CPU, or may have slept: each is shortened at its end."""
        shorter = {
            rank: tuple((start, max(start, end - waited - _SLEPT_S), 0.0) for start, end, waited in known)
            for rank, known in self.of_rank.items()
        }
        return Gaps(of_rank=shorter)

    def waited(self, rank: int) -> bool:
        """Return whether the rank mostly waited for a CPU when it did not run; otherwise it was stopped, or out of quota."""
        gaps = self.of_rank.get(rank, ())
        return sum(gap[2] for gap in gaps) >= _WAITED * sum(gap[1] - gap[0] for gap in gaps) if gaps else False


def gaps(records: Iterable[StepRecord], setting: Setting) -> Gaps:
    """A rank is watched if all of its records say when it did not run."""
    of_rank: dict[int, set[tuple[float, float, float]]] = {}
    unknown = set()
    for record in records:
        if record.gaps is None:
            unknown.add(record.rank)
            continue
        offset = setting.clocks.get(record.rank, (0.0, 0.0))[0]
        shifted = {(start + offset, end + offset, waited) for start, end, waited in record.gaps if end > start}
        of_rank.setdefault(record.rank, set()).update(shifted)
    return Gaps(of_rank={rank: _apart(known) for rank, known in of_rank.items() if rank not in unknown})


def _apart(known: Iterable[tuple[float, float, float]]) -> tuple[tuple[float, float, float], ...]:
    """Return the gaps in order and without overlaps, which records of an earlier attempt might have."""
    result: list[tuple[float, float, float]] = []
    for start, end, waited in sorted(known):
        begin = max(start, result[-1][1]) if result else start
        if end > begin:
            result.append((begin, end, waited))
    return tuple(result)
