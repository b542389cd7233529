"""Damages the checkpoint that a rank committed last, and ends that rank: the job must resume from an older one."""

from __future__ import annotations

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target
from ..model.frozen import dataclass

SAFETY: Safety = "process"
WAYS = ("truncated", "bit-flipped", "missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``how``: truncated, bit-flipped or missing. ``local_rank``: of the rank that saves, from 0."""

    how: str = "truncated"
    local_rank: int = 0

    def __post_init__(self) -> None:
        if self.how not in WAYS:
            raise ValueError(f"how: must be one of {', '.join(WAYS)} (got {self.how})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The watcher damages the largest file of the checkpoint; then the rank is killed. The file stays as it is.

    A rank that saves nothing cannot do it: choose the node of a rank that saves, usually node 0.
    """
    tear = Primitive(kind="inside", args={"do": "tear", "how": params.how, "local_rank": params.local_rank})
    end = Primitive(kind="signal", args={"signal": "KILL", "local_rank": params.local_rank})
    return Act(
        inject=(tear, end), verify=(tear, end), heal=(), verify_heal=(), lease_s=LEASE_S, safety=SAFETY,
        needs=("signal",),
    )  # fmt: skip
