"""Planned faults: their target, their injection with its evidence, and their healing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..payload import Payload, null, payload
from .field_types import Count, Rank, Seconds


@payload("fault.planned", writer="ctl")
class FaultPlanned(Payload):
    """A planned fault, noted before the first attempt. ``node``: a name, or the group rank of the node."""

    id: str
    fault: str | None = None
    node: int | str | None = null()
    trigger: Mapping[str, Any] | None = None


@payload("fault.target", writer="ctl")
class FaultTarget(Payload):
    """The target of a fault is resolved: ``node``, at group rank ``rank`` (None: a spare), as the trial ``asked``."""

    id: str
    asked: int | str | None = null()
    node: str | None = null()
    rank: Rank | None = null()


@payload("fault.unreached", writer="ctl")
class FaultUnreached(Payload):
    """The fault does not act in this run."""

    id: str
    reason: str | None = None


@payload("fault.before", writer="keeper")
class FaultBefore(Payload):
    """The observation before the injection. ``held``: the state to verify held already; None: not known."""

    id: str
    evidence: Any = null()
    held: bool | None = None


@payload("fault.injected", writer="keeper")
class FaultInjected(Payload):
    """The injection returned. ``began``: CLOCK_MONOTONIC in seconds when it was made."""

    id: str
    evidence: Any = null()
    began: Seconds | None = None


@payload("fault.verified", writer="keeper")
class FaultVerified(Payload):
    """The faulty state was observed. ``lasts``: it is observed on, and ``fault.lasted`` follows before the healing."""

    id: str
    evidence: Any = null()
    lasts: bool | None = None


@payload("fault.lasted", writer="keeper")
class FaultLasted(Payload):
    """The observations from the proof to the healing. ``held``: the state held in all of them; None: it ended with its processes.

    ``samples``: how many; ``evidence``: of the first state that did not hold, else of the last one.
    """

    id: str
    held: bool | None = null()
    samples: Count | None = None
    evidence: Any = null()


@payload("fault.healed", writer="keeper")
class FaultHealed(Payload):
    """The healing returned."""

    id: str
    evidence: Any = null()


@payload("heal.verified", writer="keeper")
class HealVerified(Payload):
    """The healed state was observed."""

    id: str
    evidence: Any = null()


@payload("lease.armed", writer="keeper, outside")
class LeaseArmed(Payload):
    """``holder`` heals the fault when the lease expires. ``key``: of the command fault.act."""

    key: str | None = None
    lease_s: Seconds | None = None
    holder: str | None = None


@payload("lease.over", writer="keeper, outside")
class LeaseOver(Payload):
    """The lease expired and its holder heals the fault."""

    key: str | None = None
