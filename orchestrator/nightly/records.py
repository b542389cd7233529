"""The nouns of judging: metrics, what a night measured of them, and what a gate says of a node and a metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ..model.frozen import dataclass, field

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
        """Return whether it exceeds the ceiling by more than the resolution of a clock explains."""
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


Outcome = Literal["pass", "warn", "fail", "unknown"]
#: The outcome that stands for several gates: the first of these that one of them has.
ORDER: tuple[Outcome, ...] = ("fail", "warn", "unknown", "pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``since``: the night in which it began. ``suspects``: versions that changed then. ``culprits``: the parts that are named."""

    gate: str
    outcome: Outcome
    text: str
    metric: str = ""
    node: str | None = None
    since: str | None = None
    suspects: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()


def worst(findings: tuple[Finding, ...]) -> Outcome:
    """Return the worst outcome; unknown without a finding. One unknown gate beside passes leaves it unknown."""
    outcomes = {finding.outcome for finding in findings}
    return next((outcome for outcome in ORDER if outcome in outcomes), "unknown")


#: The host of a node: named when the node moved, and not where one of the two nights does not tell it.
HOST = "host"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The versions of a node that differ between two nights."""
    names = sorted(name for name in {*before, *after} if before and before.get(name) != after.get(name))
    if not (before.get(HOST) and after.get(HOST)):
        names = [name for name in names if name != HOST]
    return tuple(f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names)
