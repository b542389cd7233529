"""Ring in both directions at once: half as many steps as the ring, each with two messages.

A chunk takes ceil((p-1)/2) hops to the right and floor((p-1)/2) to the left. A port that sends one message at a time carries
the same messages as in the ring, so that the time is that of the ring: 2(p-1)a + 2((p-1)/p) n b for all-reduce, half of it for
each half. If each direction has its own link, the time is half as long.
Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience", Concurrency and
Computation 19 (2007), bucket algorithms.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")


def chunks(operation: str, world: int) -> int:
    """One per rank."""
    del operation
    return world


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Reduce-scatter: partial sums of chunk c meet on rank c in the last step. All-gather: the reverse in both directions."""
    scattered = _reduce_scatter(rank, world) if operation != "all-gather" else ()
    return scattered + (_all_gather(rank, world) if operation != "reduce-scatter" else ())


def cost(operation: str, world: int) -> model.Cost:
    """p-1 messages of n/p bytes for each half, two in a step."""
    messages = (world - 1) * (2 if operation == "all-reduce" else 1)
    return model.Cost(messages, messages / world)


def _reduce_scatter(rank: int, world: int) -> model.Schedule:
    far, near = _hops(world)
    steps = []
    for index in range(far):
        sends = [model.Send(_at(rank + 1, world), (_at(rank + far - index, world),))]
        recvs = [model.Recv(_at(rank - 1, world), (_at(rank - 1 + far - index, world),), reduce=True)]
        late = index - (far - near)
        if late >= 0:
            sends.append(model.Send(_at(rank - 1, world), (_at(rank - near + late, world),)))
            recvs.append(model.Recv(_at(rank + 1, world), (_at(rank + 1 - near + late, world),), reduce=True))
        steps.append(model.Step(tuple(sends), tuple(recvs)))
    return tuple(steps)


def _all_gather(rank: int, world: int) -> model.Schedule:
    far, near = _hops(world)
    steps = []
    for index in range(far):
        sends = [model.Send(_at(rank + 1, world), (_at(rank - index, world),))]
        recvs = [model.Recv(_at(rank - 1, world), (_at(rank - 1 - index, world),))]
        if index < near:
            sends.append(model.Send(_at(rank - 1, world), (_at(rank + index, world),)))
            recvs.append(model.Recv(_at(rank + 1, world), (_at(rank + 1 + index, world),)))
        steps.append(model.Step(tuple(sends), tuple(recvs)))
    return tuple(steps)


def _hops(world: int) -> tuple[int, int]:
    """Hops of a chunk to the right and to the left."""
    return world // 2, (world - 1) // 2


def _at(number: int, world: int) -> int:
    return number % world
