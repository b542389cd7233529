"""Star: all ranks exchange with the root, which receives and sends one message at a time, without tokens.

All-reduce 2(p-1)(a + n b), broadcast and reduce (p-1)(a + n b), gather and scatter (p-1)a + ((p-1)/p) n b. The flat tree of
Pješivac-Grbović et al., "Performance analysis of MPI collective operations", Cluster Computing 10 (2007); as with a
parameter server in training.
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-reduce", "broadcast", "reduce", "gather", "scatter")


def chunks(operation: str, world: int) -> int:
    """One per rank if blocks belong to ranks, else the whole buffer."""
    return world if operation in ("gather", "scatter") else 1


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """Return the steps of a rank: to the root (rank 0), from the root, or both."""
    steps: list[model.Step] = []
    peers = (0,) if rank else tuple(range(1, world))
    if operation in ("all-reduce", "reduce", "gather"):
        reduce = operation != "gather"
        steps += [_receive(operation, peer, peer, reduce) if rank == 0 else _send(operation, 0, rank) for peer in peers]
    if operation in ("all-reduce", "broadcast", "scatter"):
        steps += [_send(operation, peer, peer) if rank == 0 else _receive(operation, 0, rank, False) for peer in peers]
    return tuple(steps)


def cost(operation: str, world: int) -> model.Cost:
    messages = (world - 1) * (2 if operation == "all-reduce" else 1)
    return model.Cost(messages, messages / world if operation in ("gather", "scatter") else messages)


def _send(operation: str, peer: int, block: int) -> model.Step:
    return model.Step(sends=(model.Send(peer, _chunks(operation, block)),))


def _receive(operation: str, peer: int, block: int, reduce: bool) -> model.Step:
    return model.Step(recvs=(model.Recv(peer, _chunks(operation, block), reduce),))


def _chunks(operation: str, block: int) -> tuple[int, ...]:
    return (block,) if operation in ("gather", "scatter") else (0,)
