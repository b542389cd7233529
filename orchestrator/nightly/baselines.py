"""Baselines: reviewed floors of one hardware model, a YAML file each. Nothing but `ccbed baseline accept` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .gates.nights import Better, Key

#: Where baselines are, relative to the working directory.
DIRECTORY = Path("inventories/baselines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """An absolute limit of a metric. ``floor`` and ``measured`` in ``unit``; ``margin``: between them, 0.1 is 10 %.

    ``n``: values of which ``measured`` is the median; ``evidence``: the runs; ``accepted``: a date; ``gang``: the hardware of
    the gang, for a figure of a whole gang.
    """

    metric: str
    floor: float
    unit: str
    better: Better
    measured: float
    margin: float
    n: int
    evidence: tuple[str, ...]
    accepted: str
    trial: str
    workload: str
    parameters: str = ""
    gang: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """``hardware``: of a node, as ``hardware_key`` describes it; ``file``: where the floors are written."""

    hardware: str
    floors: tuple[Floor, ...]
    file: str = ""

    def key(self, floor: Floor) -> Key:
        return Key(hardware=floor.gang or self.hardware, workload=floor.workload, parameters=floor.parameters)
