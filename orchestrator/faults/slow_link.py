"""Slows the link of a node down, in one direction or both, to all nodes or to one, for a time or until the run ends."""

from __future__ import annotations

from typing import Any, Literal

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s
from ..model.frozen import dataclass

SAFETY: Safety = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``percent``: the rate that is left, in percent of the link's own; ``rate_mbit``: the rate itself, in Mbit/s, instead.

    ``direction``: of the traffic that is slowed, seen from the node. ``peer``: the name of a node; only the traffic to it
    (out) and from it (in) is slowed. ``for_s``: seconds until it is healed; None: when the run ends.
    """

    percent: int = 50
    rate_mbit: float | None = None
    direction: Literal["out", "in", "both"] = "both"
    peer: str | None = None
    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)
        if not 1 <= self.percent <= 99:
            raise ValueError(f"percent: must be from 1 to 99 (got {self.percent})")
        if self.rate_mbit is not None and not 0.01 <= self.rate_mbit <= 400_000:
            raise ValueError(f"rate_mbit: must be from 0.01 to 400000 (got {self.rate_mbit:g})")
        if self.direction not in ("out", "in", "both"):
            raise ValueError(f"direction: must be out, in or both (got {self.direction})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """A lower rate of the shapers at both ends of the node's link, verified by the rate that the kernel shows.

    For a ``peer``, a class of its own below these shapers (sch_htb). Only nodes of an emulated fabric have such a link.
    """
    rate: dict[str, Any] = {"percent": params.percent}
    if params.rate_mbit is not None:
        rate = {"rate_bit": round(params.rate_mbit * 1e6)}
    peer = {"peer": params.peer} if params.peer else {}
    slow = Primitive(kind="link", args={"state": "slow", "direction": params.direction, **rate, **peer})
    full = Primitive(kind="link", args={"state": "full"})
    return Act(
        inject=(slow,),
        verify=(slow,),
        heal=(full,),
        verify_heal=(full,),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("own-link",),
        heal_after_s=params.for_s,
    )
