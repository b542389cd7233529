"""Rabenseifner: reduce-scatter by halving the buffer in every round, then all-gather by doubling it again.

All-reduce 2L a + 2((p-1)/p) n b; reduce-scatter alone L a + ((p-1)/p) n b, for powers of two. Rabenseifner, "Optimization of
collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp (2005).
All-reduce among p that is no power of two: each of the first ranks takes in the buffer of the one after it, and gives it the
result in the end: with p' the power of two below, 2(L'+1) a + 2((p'-1)/p' + 1) n b.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "reduce-scatter")


def chunks(operation: str, world: int) -> int:
    """One for each rank that takes part in the rounds."""
    del operation
    return _core(world)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Fold, halve, double, unfold."""
    core = _core(world)
    surplus = world - core
    before, after = _fold(rank, core, surplus)
    if rank < 2 * surplus and rank % 2:
        return (*before, *after)
    place = rank // 2 if rank < 2 * surplus else rank - surplus
    halved = [_round(place, bit, surplus, reduce=True) for bit in reversed(range(core.bit_length() - 1))]
    doubled = [_round(place, bit, surplus, reduce=False) for bit in range(core.bit_length() - 1)]
    return (*before, *halved, *(doubled if operation == "all-reduce" else ()), *after)


def cost(operation: str, world: int) -> model.Cost:
    """The formula above."""
    core = _core(world)
    rounds, volume = core.bit_length() - 1, (core - 1) / core
    if operation == "reduce-scatter":
        return model.Cost(rounds, volume)
    folds = 1 if world > core else 0
    return model.Cost(2 * (rounds + folds), 2 * (volume + folds))


def refuses(operation: str, world: int) -> str:
    """A reduce-scatter has a block for every rank, so none can be taken in by another."""
    if operation == "reduce-scatter" and world != _core(world):
        return (
            f"halving-doubling does reduce-scatter among 2, 4, 8, … ranks, not {world}; ring and pairwise do any number"
        )
    return ""


def _core(world: int) -> int:
    """The largest power of two that is not above ``world``."""
    return 1 << (world.bit_length() - 1)


def _fold(rank: int, core: int, surplus: int) -> tuple[model.Schedule, model.Schedule]:
    """What a rank does before and after the rounds."""
    if rank >= 2 * surplus:
        return (), ()
    whole = tuple(range(core))
    peer = rank ^ 1
    give, take = model.Step(sends=(model.Send(peer, whole),)), model.Step(recvs=(model.Recv(peer, whole),))
    if rank % 2:
        return (give,), (take,)
    return (model.Step(recvs=(model.Recv(peer, whole, reduce=True),)),), (give,)


def _round(place: int, bit: int, surplus: int, reduce: bool) -> model.Step:
    """Exchange with the one at distance 2**bit. Halving: of what both hold, each keeps its half; doubling: the reverse."""
    other = place ^ (1 << bit)
    mine, theirs = (tuple(range(one >> bit << bit, (one >> bit << bit) + (1 << bit))) for one in (place, other))
    peer = 2 * other if other < surplus else other + surplus
    sent, got = (theirs, mine) if reduce else (mine, theirs)
    return model.Step((model.Send(peer, sent),), (model.Recv(peer, got, reduce),))
