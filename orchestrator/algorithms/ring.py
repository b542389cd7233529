"""Ring: in every step each rank sends one chunk to the right and receives one from the left.

All-reduce is reduce-scatter, then all-gather: 2(p-1)a + 2((p-1)/p) n b; each half alone (p-1)a + ((p-1)/p) n b with n in all.
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")


def chunks(operation: str, world: int) -> int:
    """One per rank."""
    del operation
    return world


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """p-1 steps for each half. On this rank, all-reduce sums chunk ``rank + 1``, reduce-scatter chunk ``rank``."""
    if operation == "all-gather":
        return _half(rank, world, offset=0, reduce=False)
    if operation == "reduce-scatter":
        return _half(rank, world, offset=-1, reduce=True)
    return _half(rank, world, offset=0, reduce=True) + _half(rank, world, offset=1, reduce=False)


def cost(operation: str, world: int) -> model.Cost:
    """Every step is one message of n/p bytes."""
    steps = (world - 1) * (2 if operation == "all-reduce" else 1)
    return model.Cost(steps, steps / world)


def _half(rank: int, world: int, offset: int, reduce: bool) -> model.Schedule:
    right, left = (rank + 1) % world, (rank - 1) % world
    return tuple(
        model.Step(
            sends=(model.Send(right, ((rank + offset - index) % world,)),),
            recvs=(model.Recv(left, ((rank + offset - index - 1) % world,), reduce),),
        )
        for index in range(world - 1)
    )
