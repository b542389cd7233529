"""Slows a node down: all of its processes together get a part of one CPU, for a time or until the run ends."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s
from ..model.frozen import dataclass

SAFETY: Safety = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``cpu_percent``: CPU time that the node gets, in percent of one CPU. ``for_s``: seconds until it is healed; None:
    when the run ends."""

    cpu_percent: int = 20
    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)
        if self.cpu_percent < 1:
            raise ValueError(f"cpu_percent: must be >= 1 (got {self.cpu_percent})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """A quota of the node's cgroup, verified by the limit that the kernel shows for each process.

    On a host where no cgroup can be made, process nodes run for that part of every 0.1 s (SIGCONT, SIGSTOP). The agent
    continues, slowly.
    """
    on = Primitive(kind="limit", args={"state": "on", "cpu_percent": params.cpu_percent})
    off = Primitive(kind="limit", args={"state": "off", "cpu_percent": params.cpu_percent})
    return Act(
        inject=(on,),
        verify=(on,),
        heal=(off,),
        verify_heal=(off,),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("limit",),
        heal_after_s=params.for_s,
    )
