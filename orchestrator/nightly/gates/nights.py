"""Metrics, records of nights, and panels: all records of one metric that may be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from ...model.frozen import dataclass, field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

Better = Literal["higher", "lower"]
#: The share of its ceiling by which a value may exceed it.
CEILING_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``ceiling``: the best value that physics or the data sheet allows: a greatest rate, or a least time."""

    name: str
    unit: str
    better: Better
    ceiling: float | None = None

    @property
    def sign(self) -> float:
        """+1 if greater values are worse."""
        return 1.0 if self.better == "lower" else -1.0

    def exceeds_ceiling(self, value: float) -> bool:
        """By more than the resolution of a clock explains."""
        return self.ceiling is not None and self.sign * (value - self.ceiling) < -CEILING_TOLERANCE * abs(self.ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The comparability key. Only records with equal keys are compared."""

    hardware: str
    workload: str
    parameters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One metric of one node in one night, with the value of each pass of the night, or of each repeat.

    ``night``: the number of the recorded night. Numbers grow in the order of recording; ``date`` is for people, and may go
    backwards with the clock. ``suspects``: driver, firmware, NCCL, torch, image, kernel, agent and their versions. ``hosts``: of the
    nodes of its run, if ``node`` is their name of that night. ``again``: values of the second measurement of that night.
    """

    night: int
    node: str
    metric: Metric
    key: Key
    values: tuple[float, ...]
    date: str = ""
    suspects: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    again: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """``values``: nights x nodes x repeats in the metric's unit, NaN where there is none. ``suspects``: by night and node."""

    metric: Metric
    key: Key
    nights: tuple[int, ...]
    dates: tuple[str, ...]
    nodes: tuple[str, ...]
    values: Floats
    suspects: Mapping[tuple[int, str], Mapping[str, str]]

    @property
    def slowness(self) -> Floats:
        """ln(value), signed so that greater is worse: a difference of 0.05 is 5 %. NaN where a value is not positive."""
        import numpy as np

        usable = np.isfinite(self.values) & (self.values > 0)
        return self.metric.sign * np.log(np.where(usable, self.values, np.nan))

    def latest(self, node: str) -> tuple[float, ...]:
        """The finite values of the last night."""
        row = self.values[-1, self.nodes.index(node)]
        return tuple(float(value) for value in row if math.isfinite(value))

    def label(self, index: int) -> str:
        """A night as people know it."""
        return self.dates[index] or f"night {self.nights[index]}"


def build_panel(records: Iterable[Record], metric: str, key: Key, *, tonight: int | None = None) -> Panel:
    """The records of a metric and key up to ``tonight``, in order of night numbers.

    A repeated record of a node and night replaces the one before it. ValueError: there is no such record, or the records
    disagree about the metric's unit or direction.
    """
    import numpy as np

    rows = [
        record for record in records
        if record.metric.name == metric and record.key == key and (tonight is None or record.night <= tonight)
    ]  # fmt: skip
    definitions = {(record.metric.unit, record.metric.better) for record in rows}
    if len(definitions) != 1:
        raise ValueError(
            f"{metric}: {len(definitions)} definitions of unit and direction in its records; one is needed"
        )
    nights = sorted({record.night for record in rows} | ({tonight} if tonight is not None else set()))
    nodes = sorted({record.node for record in rows})
    values = np.full((len(nights), len(nodes), max(1, *(len(record.values) for record in rows))), np.nan)
    for record in rows:
        cell = values[nights.index(record.night), nodes.index(record.node)]
        cell[:] = np.nan
        cell[: len(record.values)] = record.values
    dates = {record.night: record.date for record in rows}
    return Panel(
        metric=rows[-1].metric, key=key, nights=tuple(nights), dates=tuple(dates.get(night, "") for night in nights),
        nodes=tuple(nodes), values=values,
        suspects={(record.night, record.node): record.suspects for record in rows},
    )  # fmt: skip
