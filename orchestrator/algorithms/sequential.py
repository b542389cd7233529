"""Sequential point-to-point: the next message begins when the previous one has been received.

Broadcast and reduce (p-1)(a + n b), gather and scatter (p-1)a + ((p-1)/p) n b, with (p-2)a more for the tokens of 4 bytes that
ensure the order; send-recv around the ring p(a + n b). The linear algorithms of Pješivac-Grbović et al., "Performance
analysis of MPI collective operations", Cluster Computing 10 (2007).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("broadcast", "reduce", "gather", "scatter", "send-recv")


def chunks(operation: str, world: int) -> int:
    """One per rank if blocks belong to ranks, else the whole buffer."""
    if operation == "send-recv":
        return 2
    return world if operation in ("gather", "scatter") else 1


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """The root (rank 0) sends to or receives from each rank in turn."""
    if operation == "send-recv":
        return _send_round(rank, world)
    reduce = operation == "reduce"
    if operation in ("reduce", "gather"):
        return _receive_in_turn(rank, world, operation, reduce)
    return _send_in_turn(rank, world, operation)


def cost(operation: str, world: int) -> model.Cost:
    if operation == "send-recv":
        return model.Cost(world, world) if world > 1 else model.Cost(0, 0)
    messages = world - 1
    volume = messages / world if operation in ("gather", "scatter") else messages
    return model.Cost(messages + max(messages - 1, 0), volume)


def _send_in_turn(rank: int, world: int, operation: str) -> model.Schedule:
    """The root waits for a token of each rank except the last."""
    last = world - 1
    if rank:
        take = model.Step(recvs=(model.Recv(0, _block(operation, rank)),))
        return (take, model.Step(sends=(model.Send(0),))) if rank != last else (take,)
    return tuple(
        model.Step((model.Send(peer, _block(operation, peer)),), (model.Recv(peer),) if peer != last else ())
        for peer in range(1, world)
    )


def _receive_in_turn(rank: int, world: int, operation: str, reduce: bool) -> model.Schedule:
    """Each rank except the first waits for the root's token."""
    if rank:
        give = model.Step(sends=(model.Send(0, _block(operation, rank)),))
        return (model.Step(recvs=(model.Recv(0),)), give) if rank > 1 else (give,)
    return tuple(
        model.Step((model.Send(peer),) if peer > 1 else (), (model.Recv(peer, _block(operation, peer), reduce),))
        for peer in range(1, world)
    )


def _send_round(rank: int, world: int) -> model.Schedule:
    """Rank 0 begins; every other rank sends after it has received."""
    if world == 1:
        return (model.Step(copies=(model.Copy(0, 1),)),)
    give = model.Step(sends=(model.Send((rank + 1) % world, (0,)),))
    take = model.Step(recvs=(model.Recv((rank - 1) % world, (1,)),))
    return (take, give) if rank else (give, take)


def _block(operation: str, rank: int) -> tuple[int, ...]:
    return (rank,) if operation in ("gather", "scatter") else (0,)
