"""Pairwise: in step i every rank sends to the rank i to its right and receives from the rank i to its left.

All-to-all (p-1)a + ((p-1)/p) n b with n per rank; reduce-scatter the same with n in all: each block is sent directly to its
owner. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-to-all", "reduce-scatter")


def chunks(operation: str, world: int) -> int:
    """All-to-all: input by destination, then output by source."""
    return 2 * world if operation == "all-to-all" else world


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """This rank's own block of an all-to-all is copied."""
    swapped = operation == "all-to-all"
    steps = [model.Step(copies=(model.Copy(rank, world + rank),))] if swapped else []
    for index in range(1, world):
        right, left = (rank + index) % world, (rank - index) % world
        recv = model.Recv(left, (world + left,)) if swapped else model.Recv(left, (rank,), reduce=True)
        steps.append(model.Step((model.Send(right, (right,)),), (recv,)))
    return tuple(steps)


def cost(operation: str, world: int) -> model.Cost:
    """p-1 messages of one block."""
    del operation
    return model.Cost(world - 1, (world - 1) / world)
