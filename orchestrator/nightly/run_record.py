"""What the index and the gates read of a bundle: which run it is, its figures by node, and the versions it ran with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .gates.nights import Key, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A metric of a node in a run. ``node``: empty for a figure of the whole gang. ``values``: of its repeats, in their order."""

    node: str
    metric: Metric
    key: Key
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A bundle. ``started``: ISO 8601, UTC. ``outcome``: as `ccbed list runs` prints it. ``ttr_s``: time to recover of its first
    failover. ``night``: the name of the night it belongs to, else empty. ``suspects``: node -> driver, NCCL, torch, … -> version.
    ``notes``: what was left out of it, and why.
    """

    run: str
    directory: str
    bed: str
    trial: str
    workload: str
    started: str
    outcome: str
    is_sealed: bool
    exit: int | None = None
    duration_s: float | None = None
    ttr_s: float | None = None
    night: str = ""
    cell: str = ""
    repeat: int = 0
    measurements: tuple[Measurement, ...] = ()
    suspects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
