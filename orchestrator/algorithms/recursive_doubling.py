"""In round j every rank exchanges all that it has with the rank at distance 2**j: L rounds.

All-reduce L(a + n b), all-gather L a + ((p-1)/p) n b, barrier L a. Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
Worlds that are no power of two: each of the first ranks takes in the one after it, and gives it the result in the end: two
more rounds, of the whole buffer where there is one.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "all-gather", "barrier")


def chunks(operation: str, world: int) -> int:
    """All-reduce: the whole buffer; all-gather: one for each rank."""
    return {"all-reduce": 1, "all-gather": world}.get(operation, 0)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Fold, double, unfold; a rank that was taken in only sends and receives once."""
    core, surplus = _core(world)
    place = rank // 2 if rank < 2 * surplus else rank - surplus
    before, after = _fold(operation, rank, world, surplus)
    if rank < 2 * surplus and rank % 2:
        return (*before, *after)
    rounds = (1 << bit for bit in range(core.bit_length() - 1))
    return (*before, *(_round(operation, place, distance, surplus) for distance in rounds), *after)


def cost(operation: str, world: int) -> model.Cost:
    """Of the largest message in each round. A folded all-gather sends nearly the whole buffer once more in the end."""
    core, surplus = _core(world)
    rounds, folds = core.bit_length() - 1, 2 if surplus else 0
    if operation == "all-reduce":
        return model.Cost(rounds + folds, rounds + folds)
    if operation == "barrier":
        return model.Cost(rounds + folds, 0)
    blocks = sum((1 << bit) + min(surplus, 1 << bit) for bit in range(rounds))
    return model.Cost(rounds + folds, (blocks + (world if surplus else 0)) / world)


def _core(world: int) -> tuple[int, int]:
    """The largest power of two that is not above ``world``, and how many ranks are left over."""
    core = 1 << (world.bit_length() - 1)
    return core, world - core


def _fold(operation: str, rank: int, world: int, surplus: int) -> tuple[model.Schedule, model.Schedule]:
    """What a rank does before and after the rounds."""
    if rank >= 2 * surplus:
        return (), ()
    odd = rank | 1
    there = {"all-reduce": (0,), "all-gather": (odd,)}.get(operation, ())
    back = {"all-reduce": (0,), "all-gather": tuple(one for one in range(world) if one != odd)}.get(operation, ())
    if rank == odd:
        return (model.Step(sends=(model.Send(rank - 1, there),)),), (model.Step(recvs=(model.Recv(rank - 1, back),)),)
    taken = model.Recv(odd, there, reduce=operation == "all-reduce")
    return (model.Step(recvs=(taken,)),), (model.Step(sends=(model.Send(odd, back),)),)


def _round(operation: str, place: int, distance: int, surplus: int) -> model.Step:
    """``place``: the rank's number among those that take part."""
    other = place ^ distance
    peer = _rank(other, surplus)
    if operation == "all-gather":
        mine, theirs = (_blocks(one // distance * distance, distance, surplus) for one in (place, other))
        return model.Step((model.Send(peer, mine),), (model.Recv(peer, theirs),))
    held = (0,) if operation == "all-reduce" else ()
    return model.Step((model.Send(peer, held),), (model.Recv(peer, held, reduce=bool(held)),))


def _rank(place: int, surplus: int) -> int:
    return 2 * place if place < surplus else place + surplus


def _blocks(first: int, count: int, surplus: int) -> tuple[int, ...]:
    """The blocks that ``count`` places from ``first`` on hold, with those of the ranks that they took in."""
    return tuple(range(_rank(first, surplus), _rank(first + count, surplus)))
