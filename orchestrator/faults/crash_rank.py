"""Ends one rank by a signal, as a segmentation fault or the kernel's out-of-memory killer does; its node continues."""

from __future__ import annotations

from ..model.act import ENDING_SIGNALS, LEASE_S, Act, HostFacts, Primitive, Safety, Target
from ..model.frozen import dataclass

SAFETY: Safety = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``local_rank``: the rank's place on its node, from 0. ``signal``: KILL, SEGV, ABRT, TERM, INT or QUIT."""

    local_rank: int = 0
    signal: str = "KILL"

    def __post_init__(self) -> None:
        if self.signal not in ENDING_SIGNALS:
            raise ValueError(f"signal: must be one of {', '.join(ENDING_SIGNALS)} (got {self.signal})")
        if self.local_rank < 0:
            raise ValueError(f"local_rank: must be >= 0 (got {self.local_rank})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The signal, verified when the process is gone. Nothing is healed: the next attempt has its own ranks."""
    end = Primitive(kind="signal", args={"signal": params.signal, "local_rank": params.local_rank})
    return Act(inject=(end,), verify=(end,), heal=(), verify_heal=(), lease_s=LEASE_S, safety=SAFETY, needs=("signal",))
