"""Metrics, and what a night measured of them."""

from __future__ import annotations

from collections.abc import Mapping
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
