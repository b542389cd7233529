"""Life signs, exits and agents of nodes, and what the workload ``node-probe`` reports of their hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..payload import Payload, Record, null, nullable, payload, record
from .field_types import Count, Figure, Rank, Seconds, Whole


@payload("node.suspect", writer="ctl")
class NodeSuspect(Payload):
    """The heart-beat of the node is late."""

    silent_s: Seconds | None = None


@payload("node.silent", writer="ctl")
class NodeSilent(Payload):
    """The heart-beat of the node is lost: a detector. ``seen``: the state of the node that an observation found then."""

    silent_s: Seconds | None = None
    seen: str | None = None


@payload("node.heard", writer="ctl")
class NodeHeard(Payload):
    """A suspect or silent node beats again."""

    silent_s: Seconds | None = None


@payload("node.exit", writer="keeper")
class NodeExit(Payload):
    """The agent of the node exited: a detector. ``code``: null where it is not known; ``left``: 0 where no process outlives it."""

    code: Whole | None = nullable()
    pid: Whole | None = null()
    left: Any = None


@payload("node.ended", writer="keeper")
class NodeEnded(Payload):
    """The node ended. ``oom``: from the container's engine; of a process node ``killed`` and ``left``, its processes."""

    code: Whole | None = null()
    oom: bool | None = None
    pid: Whole | None = null()
    killed: tuple[Whole, ...] | None = None
    left: Count | None = None


@payload("agent.ready", writer="agent")
class AgentReady(Payload):
    """The agent takes commands. ``torch``: its version; ``frozen``: the objects that gc.freeze keeps."""

    pid: Whole | None = None
    threads: Count | None = None
    torch: str | None = null()
    frozen: Count | None = None


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
