"""Chain of ranks through which the buffer flows in segments: each rank sends a segment while it receives the next.

Broadcast and reduce with k segments: (p-2+k)(a + (n/k) b). The pipeline of Pješivac-Grbović et al., "Performance analysis
of MPI collective operations", Cluster Computing 10 (2007).
"""

from __future__ import annotations

from ..model import schedule as model
from ..model.frozen import dataclass

OPERATIONS = ("broadcast", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``segments``: number of pieces into which the buffer is cut."""

    segments: int = 16

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ValueError(f"segments: must be >= 1 (got {self.segments})")


def chunks(operation: str, world: int, params: Params) -> int:
    del operation, world
    return params.segments


def schedule(operation: str, rank: int, world: int, params: Params) -> model.Schedule:
    """Broadcast from 0 upwards, reduce from the last rank downwards: each step receives a segment and sends the previous one."""
    before, after = (rank - 1, rank + 1) if operation == "broadcast" else (rank + 1, rank - 1)
    first, last = (0, world - 1) if operation == "broadcast" else (world - 1, 0)
    takes, gives = rank != first, rank != last
    steps = []
    for index in range(params.segments + (1 if takes and gives else 0) if takes or gives else 0):
        out = index - 1 if takes else index
        recvs = (model.Recv(before, (index,), operation == "reduce"),) if takes and index < params.segments else ()
        sends = (model.Send(after, (out,)),) if gives and out >= 0 else ()
        steps.append(model.Step(sends, recvs))
    return tuple(steps)


def cost(operation: str, world: int, params: Params) -> model.Cost:
    del operation
    rounds = world - 2 + params.segments if world > 1 else 0
    return model.Cost(rounds, rounds / params.segments)
