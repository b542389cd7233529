"""Dissemination barrier: in round j every rank sends a token to the rank at distance 2**j; L a.

Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Program. 17 (1988).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("barrier",)


def chunks(operation: str, world: int) -> int:
    """None: all messages are tokens."""
    del operation, world
    return 0


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """ceil(log2 p) rounds for any p."""
    del operation
    distances = [1 << bit for bit in range((world - 1).bit_length())]
    return tuple(
        model.Step((model.Send((rank + distance) % world),), (model.Recv((rank - distance) % world),))
        for distance in distances
    )


def cost(operation: str, world: int) -> model.Cost:
    """One start-up per round."""
    del operation
    return model.Cost((world - 1).bit_length(), 0)
