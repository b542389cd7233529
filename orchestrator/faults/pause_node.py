"""Stops every process of a node (SIGSTOP) for a time, or until the run ends; nothing is lost, everything is silent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..model.act import Act, HostFacts, Primitive, Safety, Target

SAFETY: Safety = "container"

#: The node goes on by itself so long after the time at which it should have been healed.
MARGIN_S = 60.0
#: The lease of a pause that lasts until the run ends.
LEASE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``for_s``: seconds until it is healed; None: when the run ends."""

    for_s: float | None = None

    def __post_init__(self) -> None:
        if self.for_s is not None and not (math.isfinite(self.for_s) and self.for_s > 0):
            raise ValueError(f"for_s: must be > 0 (got {self.for_s:g})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """SIGSTOP, proved by the state of every process; healed by SIGCONT. The agent stops too, so its keeper holds the lease."""
    on = Primitive(kind="pause", args={"state": "on"})
    off = Primitive(kind="pause", args={"state": "off"})
    return Act(
        inject=(on,),
        verify=(on,),
        heal=(off,),
        verify_heal=(off,),
        lease_s=LEASE_S if params.for_s is None else params.for_s + MARGIN_S,
        safety=SAFETY,
        needs=("pause",),
        disables=("agent",),
        heal_after_s=params.for_s,
    )
