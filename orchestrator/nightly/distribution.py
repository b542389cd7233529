"""Summarises the figures of repeated runs of one trial: the time to recover, its phases, and the duration. Pure."""

from __future__ import annotations

import math
import statistics as python_statistics
from collections.abc import Iterable, Mapping, Sequence

from ..model.frozen import dataclass
from ..views import statistics
from .run_record import MEASURED, RunRecord

#: Figures of a run in the order in which they are shown; phases follow in that of the failover.
FIRST = ("duration", "ttr", "detect", "caught-up", "goodput")
_PHASE = "phase "


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A figure over runs. ``values``: run -> the figures of its failovers, or its only one. ``low``, ``high``: enclose the median
    with a probability of 95 % (order statistics), None with fewer than 6 values.
    """

    metric: str
    unit: str
    values: Mapping[str, tuple[float, ...]]
    count: int
    median: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float


def collect(records: Iterable[RunRecord]) -> tuple[Distribution, ...]:
    """Runs that were not measured to their end have no figures."""
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    units: dict[str, str] = {}
    for record in (record for record in records if record.outcome in MEASURED):
        if record.duration_s is not None:
            values.setdefault("duration", {})[record.run] = (record.duration_s,)
            units["duration"] = "s"
        for measurement in record.measurements:
            name = measurement.metric.name
            finite = tuple(value for value in measurement.values if math.isfinite(value))
            if finite and not measurement.node and (name in FIRST or name.startswith(_PHASE)):
                values.setdefault(name, {})[record.run] = finite
                units[name] = measurement.metric.unit
    order = [name for name in FIRST if name in values] + [name for name in values if name not in FIRST]
    return tuple(_distribution(name, units[name], values[name]) for name in order)


def _distribution(name: str, unit: str, by_run: Mapping[str, tuple[float, ...]]) -> Distribution:
    flat = [value for values in by_run.values() for value in values]
    low, high = _interval(flat)
    return Distribution(
        metric=name, unit=unit, values=dict(by_run), count=len(flat), median=python_statistics.median(flat), low=low, high=high,
        minimum=min(flat), maximum=max(flat),
    )  # fmt: skip


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    import numpy as np

    interval = statistics.median(np.array(values))
    return (interval.low, interval.high) if math.isfinite(interval.low) else (None, None)
