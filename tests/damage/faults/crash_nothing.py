"""Claims to crash a node and does nothing: its state must not be called verified."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target

SAFETY: Safety = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No parameters."""


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The verification is that of crash-node; the injection resumes a node that is not paused, which changes nothing."""
    off = Primitive(kind="power", args={"state": "off"})
    on = Primitive(kind="power", args={"state": "on"})
    return Act(
        inject=(Primitive(kind="pause", args={"state": "off"}),),
        verify=(off,),
        heal=(on,),
        verify_heal=(on,),
        lease_s=LEASE_S,
        safety=SAFETY,
        needs=("kill",),
        disables=("agent",),
    )
