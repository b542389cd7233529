"""Binomial tree: in every round each rank that has the data sends it to another, so that their number doubles.

Broadcast and reduce L(a + n b), all-reduce (reduce, then broadcast) 2L(a + n b), gather and scatter L a + ((p-1)/p) n b. Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
A completed send only means that the data is in a buffer of the sender, so that the sends of several rounds share the link:
about L a + (L(L+1)/2) n b. With ``acknowledged``, a sender waits for a token of 4 bytes before its next round. The rounds then
cost as in the literature, plus a start-up each: broadcast and scatter take (L-1)a more.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import schedule as model
from ..model.frozen import dataclass

OPERATIONS = ("broadcast", "reduce", "all-reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``acknowledged``: a sender waits for a token before its next round."""

    acknowledged: bool = True


def chunks(operation: str, world: int, params: Params) -> int:
    """One per rank if blocks belong to ranks, else the whole buffer."""
    del params
    return world if operation in ("gather", "scatter") else 1


def schedule(operation: str, rank: int, world: int, params: Params) -> model.Schedule:
    """Return the steps of a rank: to the root (rank 0), from the root, or both."""
    inwards = _inwards(operation, rank, world) if operation in ("reduce", "gather", "all-reduce") else ()
    outwards = _outwards(operation, rank, world, params) if operation in ("broadcast", "scatter", "all-reduce") else ()
    return (*inwards, *outwards)


def cost(operation: str, world: int, params: Params) -> model.Cost:
    """Inwards L rounds. Outwards L rounds with L-1 tokens between them, or L rounds that share the root's link."""
    rounds = (world - 1).bit_length()
    if operation in ("gather", "scatter"):
        inner, outer = (world - 1) / world, sum(size - 1 for size in _largest(world)) / world
    else:
        inner, outer = float(rounds), rounds * (rounds + 1) / 2
    into = model.Cost(rounds, inner)
    out = model.Cost(max(2 * rounds - 1, 0), inner) if params.acknowledged else model.Cost(rounds, outer)
    if operation == "all-reduce":
        return model.Cost(into.rounds + out.rounds, into.volume + out.volume)
    return into if operation in ("reduce", "gather") else out


def _inwards(operation: str, rank: int, world: int) -> model.Schedule:
    """Receive from the children, the nearest first; then send to the parent."""
    reduce = operation != "gather"
    steps = [
        model.Step(recvs=(model.Recv(child, _carried(operation, child, world), reduce),))
        for child in reversed(list(_children(rank, world)))
    ]
    if rank:
        steps.append(model.Step(sends=(model.Send(_parent(rank), _carried(operation, rank, world)),)))
    return tuple(steps)


def _outwards(operation: str, rank: int, world: int, params: Params) -> model.Schedule:
    """Receive from the parent; then send to the children, the farthest first. The last child sends no token."""
    steps = []
    if rank:
        steps.append(model.Step(recvs=(model.Recv(_parent(rank), _carried(operation, rank, world)),)))
        if params.acknowledged and rank - _parent(rank) > 1:
            steps.append(model.Step(sends=(model.Send(_parent(rank)),)))
    for child in _children(rank, world):
        token = (model.Recv(child),) if params.acknowledged and child - rank > 1 else ()
        steps.append(model.Step((model.Send(child, _carried(operation, child, world)),), token))
    return tuple(steps)


def _parent(rank: int) -> int:
    return rank & (rank - 1)


def _children(rank: int, world: int) -> Iterator[int]:
    """The farthest first."""
    span = rank & -rank if rank else 1 << (world - 1).bit_length()
    while span > 1:
        span //= 2
        if rank + span < world:
            yield rank + span


def _carried(operation: str, child: int, world: int) -> tuple[int, ...]:
    """The chunks between ``child`` and its parent: the blocks of its subtree, or the whole buffer."""
    if operation not in ("gather", "scatter"):
        return (0,)
    return tuple(range(child, min(child + (child & -child), world)))


def _largest(world: int) -> Iterator[int]:
    """The number of ranks in the tree, in its largest branch, in the largest branch of that, and so on."""
    rank = 0
    while True:
        yield min(rank & -rank if rank else world, world - rank)
        child = next(_children(rank, world), None)
        if child is None:
            return
        rank = child
