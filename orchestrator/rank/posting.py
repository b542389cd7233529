"""When each receive of a schedule may be posted: as early as nothing can be overwritten. Pure.

A receive that is posted late makes its sender wait for a round trip first; on loopback with busy cores that tripled the time
of a ring. Added receives go to scratch memory and can be posted at once. A replacing one must wait until its chunk is
no longer read or written by an earlier step. Receives from one peer keep their order, because transports match them by it.
"""

from __future__ import annotations

from ..model import schedule as model

#: (step of the schedule, index of the receive in that step)
Place = tuple[int, int]


def plan(schedule: model.Schedule) -> tuple[tuple[Place, ...], ...]:
    """Per step the receives that are posted when it begins, in order."""
    posted: list[list[Place]] = [[] for _ in schedule]
    last_use: dict[int, int] = {}
    last_post: dict[int, int] = {}
    for index, step in enumerate(schedule):
        for number, recv in enumerate(step.recvs):
            free = 0 if recv.reduce else last_use.get(recv.chunk, -1) + 1
            at = last_post[recv.peer] = max(free, last_post.get(recv.peer, 0))
            posted[at].append((index, number))
        last_use.update((send.chunk, index) for send in step.sends)
        last_use.update((recv.chunk, index) for recv in step.recvs)
    return tuple(tuple(places) for places in posted)
