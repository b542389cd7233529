"""Recursive doubling: in round j every rank exchanges all its data with the rank at distance 2**j; L rounds.

All-reduce L(a + n b), all-gather L a + ((p-1)/p) n b, barrier L a. Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
Worlds that are not a power of two: each of the first ranks receives the data of the next rank, and sends it the result at the
end: two more rounds, with the whole buffer if there is one. The other ranks are ahead of these, so all receive in turn.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "all-gather", "barrier")


def chunks(operation: str, world: int) -> int:
    """All-reduce: the whole buffer; all-gather: one per rank."""
    return {"all-reduce": 1, "all-gather": world}.get(operation, 0)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Fold, double, unfold; a folded rank only sends once and receives once."""
    core, surplus = _core(world)
    number = rank // 2 if rank < 2 * surplus else rank - surplus
    before, after = _fold(operation, rank, world, surplus)
    if rank < 2 * surplus and rank % 2:
        return (*before, *after)
    rounds = (1 << bit for bit in range(core.bit_length() - 1))
    return (*before, *(_round(operation, number, distance, surplus) for distance in rounds), *after)


def cost(operation: str, world: int) -> model.Cost:
    """Add up the largest message of each round. A folded all-gather sends nearly the whole buffer once more at the end."""
    core, surplus = _core(world)
    rounds, folds = core.bit_length() - 1, 2 if surplus else 0
    if operation == "all-reduce":
        return model.Cost(rounds + folds, rounds + folds)
    if operation == "barrier":
        return model.Cost(rounds + folds, 0)
    blocks = sum((1 << bit) + min(surplus, 1 << bit) for bit in range(rounds))
    return model.Cost(rounds + folds, (blocks + (world if surplus else 0)) / world)


def _core(world: int) -> tuple[int, int]:
    """The largest power of two that is not above ``world``, and the number of remaining ranks."""
    core = 1 << (world.bit_length() - 1)
    return core, world - core


def _fold(operation: str, rank: int, world: int, surplus: int) -> tuple[model.Schedule, model.Schedule]:
    """The steps of a rank before and after the rounds."""
    if rank >= 2 * surplus:
        return (), ()
    odd = rank | 1
    inward = {"all-reduce": (0,), "all-gather": (odd,)}.get(operation, ())
    outward = {"all-reduce": (0,), "all-gather": tuple(block for block in range(world) if block != odd)}.get(
        operation, ()
    )
    if rank == odd:
        return (model.Step(sends=(model.Send(rank - 1, inward),)),), (
            model.Step(recvs=(model.Recv(rank - 1, outward),)),
        )
    receive = model.Recv(odd, inward, reduce=operation == "all-reduce")
    return (model.Step(recvs=(receive,)),), (model.Step(sends=(model.Send(odd, outward),)),)


def _round(operation: str, number: int, distance: int, surplus: int) -> model.Step:
    """``number``: of the rank among those that take part."""
    other = number ^ distance
    peer = _rank(other, surplus)
    if operation == "all-gather":
        own, peers = (_blocks(part // distance * distance, distance, surplus) for part in (number, other))
        return model.Step((model.Send(peer, own),), (model.Recv(peer, peers, in_turn=surplus > 0),))
    whole = (0,) if operation == "all-reduce" else ()
    return model.Step((model.Send(peer, whole),), (model.Recv(peer, whole, bool(whole), in_turn=surplus > 0),))


def _rank(number: int, surplus: int) -> int:
    return 2 * number if number < surplus else number + surplus


def _blocks(first: int, count: int, surplus: int) -> tuple[int, ...]:
    """The blocks of ``count`` numbers from ``first``, including those of the folded ranks."""
    return tuple(range(_rank(first, surplus), _rank(first + count, surplus)))
