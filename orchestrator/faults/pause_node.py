"""Stops every process of a node (SIGSTOP) for a time or until the run ends; nothing is lost, but the node is silent."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s

SAFETY: Safety = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``for_s``: seconds until it is healed; None: when the run ends."""

    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """SIGSTOP, verified by the state of every process; healed by SIGCONT. The agent stops too, so the keeper holds the lease."""
    on = Primitive(kind="pause", args={"state": "on"})
    off = Primitive(kind="pause", args={"state": "off"})
    return Act(
        inject=(on,),
        verify=(on,),
        heal=(off,),
        verify_heal=(off,),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("pause",),
        disables=("agent",),
        heal_after_s=params.for_s,
    )
