"""All-reduce on a ring: reduce-scatter, then all-gather; 2(p-1) steps, 2(p-1)/p of the buffer per rank.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATION = "all-reduce"


def chunks(world: int) -> int:
    """Into how many chunks the buffer is cut."""
    return world


def schedule(rank: int, world: int) -> model.Schedule:
    """The steps of ``rank``: every step sends one chunk to the right and receives the one before it from the left."""
    return _half(rank, world, offset=0, reduce=True) + _half(rank, world, offset=1, reduce=False)


def _half(rank: int, world: int, offset: int, reduce: bool) -> model.Schedule:
    right, left = (rank + 1) % world, (rank - 1) % world
    return tuple(
        model.Step(
            sends=(model.Send(right, (rank + offset - index) % world),),
            recvs=(model.Recv(left, (rank + offset - index - 1) % world, reduce),),
        )
        for index in range(world - 1)
    )
