"""Makes one rank run out of memory: its next allocation fails, and its script sees the allocator's own error."""

from __future__ import annotations

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target
from ..model.frozen import dataclass

SAFETY: Safety = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``local_rank``: the rank's place on its node, from 0."""

    local_rank: int = 0


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """The watcher allocates until torch refuses, on the GPU where the script uses one, else up to a limit of this process.

    Only the rank itself is short of memory. Where the kernel kills a rank instead, use ``crash-rank``.
    """
    allocate = Primitive(kind="inside", args={"do": "run-out-of-memory", "local_rank": params.local_rank})
    return Act(
        inject=(allocate,), verify=(allocate,), heal=(), verify_heal=(), lease_s=LEASE_S, safety=SAFETY,
        needs=("signal",),
    )  # fmt: skip
