"""Direct: every rank is ready to receive all messages at once; it sends small ones at once and large ones one after the other.

All-to-all and all-gather (p-1)a + ((p-1)/p) n b; send-recv a + n b. Where a fabric shares its ports among all messages at once,
it does not share them evenly: ports were idle for 5 to 30 % of the time. A receiver that decides on the order makes each sender
wait for its permission (8 ranks on 2 cores: 1.12 to 1.17 times the time of the model; 1.02 to 1.04 where the sender decides). The
linear algorithms of Open MPI; Pješivac-Grbović et al., "Performance analysis of MPI collective operations" (2007).
"""

from __future__ import annotations

from ..model import schedule as model

OPERATIONS = ("all-to-all", "all-gather", "send-recv")


def chunks(operation: str, world: int) -> int:
    """All-to-all: input by destination, then output by source; send-recv: one to send, one to receive."""
    return {"all-to-all": 2 * world, "send-recv": 2}.get(operation, world)


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """One step. Each rank begins with a different peer, so that ranks do not send to the same peer in the same turn."""
    swapped, shifted = operation == "all-to-all", operation == "send-recv"
    if shifted and world == 1:
        return (model.Step(copies=(model.Copy(0, 1),)),)
    sends, recvs = [], []
    for index in (1,) if shifted else range(1, world):
        right, left = (rank + index) % world, (rank - index) % world
        sends.append(model.Send(right, (0,) if shifted else (right,) if swapped else (rank,)))
        recvs.append(model.Recv(left, (1,) if shifted else (world + left,) if swapped else (left,)))
    copies = (model.Copy(rank, world + rank),) if swapped else ()
    return (model.Step(tuple(sends), tuple(recvs), copies, in_turn=True),) if sends or copies else ()


def cost(operation: str, world: int) -> model.Cost:
    """The messages of one port."""
    if operation == "send-recv":
        return model.Cost(1, 1) if world > 1 else model.Cost(0, 0)
    return model.Cost(world - 1, (world - 1) / world)
