"""Preempts a node: a notice (SIGTERM to its ranks), a grace in which they may save, then every process is killed."""

from __future__ import annotations

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target, check_time
from ..model.frozen import dataclass

SAFETY: Safety = "container"
#: For the end of the node after the grace, and for its start when it is healed.
MARGIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``grace_s``: seconds from the notice to the end; less where all ranks have ended before."""

    grace_s: float = 30.0

    def __post_init__(self) -> None:
        check_time(self.grace_s)


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """Verified when no process is left; healed by power on. The evidence says whether the ranks used the notice to end."""
    notice = Primitive(kind="signal", args={"signal": "TERM", "local_rank": "all", "grace_s": params.grace_s})
    off = Primitive(kind="power", args={"state": "off"})
    on = Primitive(kind="power", args={"state": "on"})
    return Act(
        inject=(notice, off),
        verify=(off,),
        heal=(on,),
        verify_heal=(on,),
        lease_s=LEASE_S + params.grace_s,
        safety=SAFETY,
        needs=("kill", "signal"),
        disables=("agent",),
        limit_s=params.grace_s + MARGIN_S,
    )
