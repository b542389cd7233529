"""Barrier by a counter: every rank sends a token to rank 0, which answers all of them; 2 a."""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("barrier",)


def chunks(operation: str, world: int) -> int:
    """None: all messages are tokens."""
    return 0


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Two steps: to the counter and back."""
    if world == 1:
        return ()
    peers = range(1, world) if rank == 0 else (0,)
    send = model.Step(sends=tuple(model.Send(peer) for peer in peers))
    receive = model.Step(recvs=tuple(model.Recv(peer) for peer in peers))
    return (receive, send) if rank == 0 else (send, receive)


def cost(operation: str, world: int) -> model.Cost:
    """Two start-ups, whatever the world: tokens to and from the counter are in flight together."""
    return model.Cost(2 if world > 1 else 0, 0)
