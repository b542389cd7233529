"""Holds what the index has of a run and of a night, and what it answers: lists and trends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.frozen import dataclass, field
from ..suite import Row

if TYPE_CHECKING:
    from ..records import Key, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class NightEntry:
    """``directory``: absolute. ``number``: 0 for a casual night. ``outcome``, ``exit``: None before it was judged."""

    directory: str
    name: str
    bed: str
    suite: str
    number: int
    started: str
    is_closed: bool
    outcome: str | None = None
    exit: int | None = None
    sentence: str = ""
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NightContent(NightEntry):
    """A night as it is stored: its ``directory`` is relative. ``rows``: of those that have a run."""

    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run. ``directory``: absolute. ``night``: the name of its night's directory; ``cell``: empty unless the night names the run.

    ``notes``: what was left out of its measurements, and why.
    """

    run: str
    directory: str
    bed: str
    trial: str
    workload: str
    started: str
    outcome: str
    is_sealed: bool
    exit: int | None
    duration_s: float | None
    ttr_s: float | None
    night: str
    cell: str
    repeat: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """A night of a trend. ``value``: the median of its passes, None without one. ``values``: of all passes, in order."""

    night: int
    name: str
    date: str
    node: str
    value: float | None
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A metric over the recorded nights of a bed, for one comparability key. ``node`` of a point: empty for the whole gang."""

    bed: str
    trial: str
    cells: tuple[str, ...]
    metric: Metric
    key: Key
    points: tuple[TrendPoint, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({point.node for point in self.points}))
