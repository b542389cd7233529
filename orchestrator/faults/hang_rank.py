"""Hangs one rank: its process is stopped, or it spins and holds the interpreter's lock. No process ends."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s
from ..model.frozen import dataclass

SAFETY: Safety = "process"
STOPPED, SPINNING = "stopped", "spinning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``how``: stopped or spinning. ``for_s``: seconds until a stopped rank continues; None: when the run ends."""

    how: str = STOPPED
    local_rank: int = 0
    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)
        if self.how not in (STOPPED, SPINNING):
            raise ValueError(f"how: must be {STOPPED} or {SPINNING} (got {self.how})")
        if self.how == SPINNING and self.for_s is not None:
            raise ValueError(f"for_s: a {SPINNING} rank never continues (got {self.for_s:g})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """SIGSTOP, verified by the state of the process and healed by SIGCONT; or a loop in C, which the rank reports before it.

    A spinning rank ends with its attempt.
    """
    stop = Primitive(kind="signal", args={"signal": "STOP", "local_rank": params.local_rank})
    go = Primitive(kind="signal", args={"signal": "CONT", "local_rank": params.local_rank})
    spin = Primitive(kind="inside", args={"do": "spin", "local_rank": params.local_rank})
    hang, heal = ((stop,), (go,)) if params.how == STOPPED else ((spin,), ())
    return Act(
        inject=hang,
        verify=hang,
        heal=heal,
        verify_heal=heal,
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("signal",),
        heal_after_s=params.for_s,
    )
