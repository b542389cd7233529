"""What the views are made of: milestones, failovers, spans, faults, a run at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: In this order; a phase is the difference of the running maximum of two neighbours, so phases sum to the TTR.
MILESTONES = (
    "injected",
    "detected",
    "old epoch gone",
    "nodes ready",
    "store ready",
    "joined",
    "restored",
    "first step",
)
PHASES = ("detect", "stop", "node", "store", "join", "restore", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """A point in a failover: when (seconds since the run began), by the last rank or node to get there."""

    name: str
    t: float
    seq: int
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One loss and its recovery: ``index`` from 0, ``epoch`` is the new one, ``fault`` the id of the planned fault behind it.

    ``ttr_s``, ``detect_s`` and ``caught_up_s`` are seconds since the start: where the injecting call began, else detected
    (``detect_s`` is None then: there is nothing to measure it from). ``phases``: (name, seconds), summing to ``ttr_s``.
    ``lost_steps``: executed before, executed again after. ``newest_step``: of the newest checkpoint that the kept lineage
    had committed before the new epoch. None: not reached, or not known.
    """

    index: int
    epoch: int
    lost: tuple[str, ...]
    failed_ranks: tuple[int, ...]
    detector: str
    fault: str | None
    policies: Mapping[str, str]
    milestones: tuple[Milestone, ...]
    phases: tuple[tuple[str, float], ...]
    ttr_s: float | None
    detect_s: float | None
    caught_up_s: float | None = None
    resume_step: int | None = None
    resume_name: str | None = None
    newest_step: int | None = None
    lost_steps: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a node's time line. kind: start | run | held | paused | dead | idle."""

    node: str
    kind: str
    start: float
    end: float
    epoch: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """A planned fault and how far it got: planned, armed, injected, verified, healed, heal verified (seconds or None).

    ``struck``: when the call that injects began; ``injected`` is its return.
    """

    id: str
    fault: str
    node: str | None
    rank: int | None
    stages: Mapping[str, float | None] = field(default_factory=dict)
    struck: float | None = None
    exact: bool = True
    unreached: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run at a glance. ``outcome``: running | finished | failed | interrupted. ``goodput``: 0..1, see goodput().

    ``step``: the last that was completed; None where a script reports no steps, so that none is known.
    """

    outcome: str
    reason: str
    kind: str
    step: int | None
    steps: int | None
    loss: float | None
    duration_s: float
    epochs: int
    slots: tuple[str, ...]
    failovers: tuple[Failover, ...]
    faults: tuple[FaultView, ...]
    goodput: float | None = None
