"""Kills one rank and leaves its node alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.act import Act, HostFacts, Primitive, Safety, Target

SAFETY: Safety = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``signal``: KILL (nothing can be tidied up) or TERM."""

    signal: str = "KILL"

    def __post_init__(self) -> None:
        if self.signal not in ("KILL", "TERM"):
            raise ValueError(f"signal: must be KILL or TERM (got {self.signal})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The signal, proved by the rank being gone. There is nothing to heal: the next gang has its own rank."""
    kill = Primitive(kind="signal", args={"signal": params.signal, "rank": target.rank})
    return Act(inject=(kill,), verify=(kill,), heal=(), verify_heal=(), lease_s=60.0, safety=SAFETY, needs=("signal",))
