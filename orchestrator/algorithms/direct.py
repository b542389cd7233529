"""Direct: every rank offers all its messages at once; it receives small ones at once and large ones one after the other.

All-to-all and all-gather (p-1)a + ((p-1)/p) n b; send-recv a + n b. Where a fabric shares its ports among all messages at once,
it does not share them evenly: ports were idle for 5 to 30 % of the time, so the receiver decides on the order. The
linear algorithms of Open MPI; Pješivac-Grbović et al., "Performance analysis of MPI collective operations" (2007).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-to-all", "all-gather", "send-recv")


def chunks(operation: str, world: int) -> int:
    """All-to-all: input by destination, then output by source; send-recv: one to send, one to receive."""
    return {"all-to-all": 2 * world, "send-recv": 2}.get(operation, world)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """One step. Each rank begins with a different peer, so that ranks do not send to the same peer first.

    Two ranks that send to each other in the same turn come first: what tells the sender that a later receive is ready would
    wait behind the message that goes the same way (4 ranks, 4 MiB at 145 Mbit/s: 1.63 times the time).
    """
    swapped, shifted = operation == "all-to-all", operation == "send-recv"
    if shifted and world == 1:
        return (model.Step(copies=(model.Copy(0, 1),)),)
    sends, recvs = [], []
    for index in (1,) if shifted else sorted(range(1, world), key=lambda index: 2 * index != world):
        right, left = (rank + index) % world, (rank - index) % world
        sends.append(model.Send(right, (0,) if shifted else (right,) if swapped else (rank,)))
        recvs.append(model.Recv(left, (1,) if shifted else (world + left,) if swapped else (left,), in_turn=True))
    copies = (model.Copy(rank, world + rank),) if swapped else ()
    return (model.Step(tuple(sends), tuple(recvs), copies),) if sends or copies else ()


def cost(operation: str, world: int) -> model.Cost:
    """The messages of one port."""
    if operation == "send-recv":
        return model.Cost(1, 1) if world > 1 else model.Cost(0, 0)
    return model.Cost(world - 1, (world - 1) / world)
