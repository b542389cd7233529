"""Halving-doubling (Rabenseifner): reduce-scatter by halving the buffer in every round, then all-gather by doubling.

All-reduce 2L a + 2((p-1)/p) n b; reduce-scatter alone L a + ((p-1)/p) n b, for powers of two. Rabenseifner, "Optimization of
collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp (2005).
All-reduce for p that is not a power of two: each of the first ranks receives the buffer of the next rank, and sends it the result
at the end: with p' the power of two below p, 2(L'+1) a + 2((p'-1)/p' + 1) n b. The other ranks are ahead of these, so all
receive in turn.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "reduce-scatter")


def chunks(operation: str, world: int) -> int:
    """One per rank that takes part in the rounds."""
    del operation
    return _core(world)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Fold, halve, double, unfold."""
    core = _core(world)
    surplus = world - core
    before, after = _fold(rank, core, surplus)
    if rank < 2 * surplus and rank % 2:
        return (*before, *after)
    number = rank // 2 if rank < 2 * surplus else rank - surplus
    halved = [_round(number, bit, surplus, reduce=True) for bit in reversed(range(core.bit_length() - 1))]
    doubled = [_round(number, bit, surplus, reduce=False) for bit in range(core.bit_length() - 1)]
    return (*before, *halved, *(doubled if operation == "all-reduce" else ()), *after)


def cost(operation: str, world: int) -> model.Cost:
    core = _core(world)
    rounds, volume = core.bit_length() - 1, (core - 1) / core
    if operation == "reduce-scatter":
        return model.Cost(rounds, volume)
    folds = 1 if world > core else 0
    return model.Cost(2 * (rounds + folds), 2 * (volume + folds))


def refuses(operation: str, world: int) -> str:
    """A reduce-scatter has a block for every rank, so that ranks cannot be folded."""
    if operation == "reduce-scatter" and world != _core(world):
        return (
            f"halving-doubling does reduce-scatter among 2, 4, 8, … ranks, not {world}; ring and pairwise do any number"
        )
    return ""


def _core(world: int) -> int:
    """The largest power of two that is not above ``world``."""
    return 1 << (world.bit_length() - 1)


def _fold(rank: int, core: int, surplus: int) -> tuple[model.Schedule, model.Schedule]:
    """The steps of a rank before and after the rounds."""
    if rank >= 2 * surplus:
        return (), ()
    whole = tuple(range(core))
    peer = rank ^ 1
    send, receive = model.Step(sends=(model.Send(peer, whole),)), model.Step(recvs=(model.Recv(peer, whole),))
    if rank % 2:
        return (send,), (receive,)
    return (model.Step(recvs=(model.Recv(peer, whole, reduce=True),)),), (send,)


def _round(number: int, bit: int, surplus: int, reduce: bool) -> model.Step:
    """Exchange with distance 2**bit. Halving: each rank keeps its half of the common chunks; doubling: the reverse."""
    other = number ^ (1 << bit)
    own, peers = (tuple(range(part >> bit << bit, (part >> bit << bit) + (1 << bit))) for part in (number, other))
    peer = 2 * other if other < surplus else other + surplus
    sent, got = (peers, own) if reduce else (own, peers)
    return model.Step((model.Send(peer, sent),), (model.Recv(peer, got, reduce, in_turn=surplus > 0),))
