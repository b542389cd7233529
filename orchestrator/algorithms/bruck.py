"""Bruck: in round j, blocks are exchanged with the ranks at distance 2**j; ceil(log2 p) rounds for any p.

All-gather L a + ((p-1)/p) n b. All-to-all about L a + (n/2) L b with n per rank: a block takes a hop for every bit of its
distance. Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-gather", "all-to-all")
#: Blocks of other ranks pass through scratch with the size of this rank's blocks.
EVEN = ("all-to-all",)


def chunks(operation: str, world: int) -> int:
    """All-to-all: input by destination, output by source, and scratch by distance."""
    return 3 * world if operation == "all-to-all" else world


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """A round for every bit of p-1."""
    rounds = range((world - 1).bit_length())
    if operation == "all-gather":
        return tuple(_gathered(rank, world, 1 << bit) for bit in rounds)
    own = model.Step(copies=(model.Copy(rank, world + rank),))
    return (own, *(_swapped(rank, world, bit) for bit in rounds))


def cost(operation: str, world: int) -> model.Cost:
    """The blocks of every round."""
    rounds = (world - 1).bit_length()
    if operation == "all-gather":
        return model.Cost(rounds, (world - 1) / world)
    return model.Cost(rounds, sum(distance.bit_count() for distance in range(world)) / world)


def _gathered(rank: int, world: int, distance: int) -> model.Step:
    """The rank has the blocks of ``distance`` ranks, beginning with its own; it receives those that follow."""
    blocks = range(min(distance, world - distance))
    source = (rank + distance) % world
    sent = tuple((rank + block) % world for block in blocks)
    got = tuple((source + block) % world for block in blocks)
    return model.Step((model.Send((rank - distance) % world, sent),), (model.Recv(source, got),))


def _swapped(rank: int, world: int, bit: int) -> model.Step:
    """All blocks whose distance has this bit. A block leaves the input on its first hop and reaches the output on its last."""
    ways = [way for way in range(world) if way >> bit & 1]
    sent = tuple(2 * world + way if way & ((1 << bit) - 1) else (rank + way) % world for way in ways)
    got = tuple(2 * world + way if way >> (bit + 1) else world + (rank - way) % world for way in ways)
    step = 1 << bit
    return model.Step((model.Send((rank + step) % world, sent),), (model.Recv((rank - step) % world, got),))
