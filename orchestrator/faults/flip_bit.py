"""Flips one bit in the memory of a rank: of a gradient, a parameter or an optimizer state, as silent data corruption does."""

from __future__ import annotations

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target
from ..model.frozen import dataclass

SAFETY: Safety = "process"
PLACES = ("gradient", "parameter", "optimizer")
MOMENTS = ("before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters.

    of           gradient, parameter or optimizer: of the first element of the largest parameter that the rank holds
    when         of a gradient: before or after it is reduced over the replicas
    bit          from 0, the lowest; 30 is the highest bit of the exponent of a 32-bit float
    local_rank   the rank's place on its node, from 0
    """

    of: str = "gradient"
    when: str = "after"
    bit: int = 30
    local_rank: int = 0

    def __post_init__(self) -> None:
        if self.of not in PLACES:
            raise ValueError(f"of: must be one of {', '.join(PLACES)} (got {self.of})")
        if self.when not in MOMENTS:
            raise ValueError(f"when: must be before or after (got {self.when})")
        if not 0 <= self.bit < 64:
            raise ValueError(f"bit: must be from 0 to 63 (got {self.bit})")


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The watcher flips it, and answers with the value before and after. Nothing is healed: whether it is noticed is the test.

    Replicas that differ are noticed by ``replicas-identical``. What is flipped before the reduction, or in a shard that
    no other rank has, reaches every copy alike: only the undisturbed twin shows it.
    """
    where = {"part": params.of, "when": params.when, "bit": params.bit, "local_rank": params.local_rank}
    flip = Primitive(kind="inside", args={"do": "flip", **where})
    return Act(
        inject=(flip,), verify=(flip,), heal=(), verify_heal=(), lease_s=LEASE_S, safety=SAFETY, needs=("signal",)
    )
