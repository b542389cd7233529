"""Stops every process of a node (SIGSTOP) for a time or until the run ends; nothing is lost, but the node is silent."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Lasting, Primitive, Safety, Target, lease_s

SAFETY: Safety = "container"

Params = Lasting


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
