"""What the workload ``node-probe`` reports of the hardware of a node."""

from __future__ import annotations

from collections.abc import Mapping

from ..payload import Payload, Record, payload, record
from .units import Figure, Rank, Seconds


@record
class ProbeFigure(Record):
    """A figure of a node. ``better``: higher | lower. ``values``: of the repeats, in their order.

    ``ceiling``: the best value that physics or the data sheet allows: a greatest rate, or a least time; absent if not known.
    """

    name: str
    unit: str
    better: str
    values: tuple[Figure, ...]
    ceiling: Figure | None = None


@record
class ComputedBits(Record):
    """SHA-256 of the result of the computation that is the same on every node. ``device``: model of the GPU or CPU."""

    device: str
    software: str
    digest: str
    seconds: Seconds


@payload("probe.done", writer="rank")
class ProbeDone(Payload):
    """A probe ended on a rank. ``missing``: what could not be read -> why. ``error``: why the probe ended early.

    ``problems``: what the hardware itself reports as a defect, such as uncorrected memory errors.
    """

    rank: Rank
    probe: str
    figures: tuple[ProbeFigure, ...] | None = None
    facts: Mapping[str, str] | None = None
    missing: Mapping[str, str] | None = None
    problems: tuple[str, ...] | None = None
    bits: tuple[ComputedBits, ...] | None = None
    error: str | None = None
    took_s: Seconds | None = None
