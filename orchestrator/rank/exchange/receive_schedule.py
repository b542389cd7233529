"""When each receive of a schedule may be posted: as early as nothing can be overwritten. Pure.

A receive that is posted late makes its sender wait for a round trip first; on loopback with busy cores that tripled the time
of a ring. A staged receive goes to scratch memory and can be posted at once, as far as scratch reaches: about the size of
the buffer. Others must wait until their chunks are no longer read or written by an earlier step. Receives from one peer
keep their order, because transports match them by it. Where two peers send long streams in turns, as in trees with segments, a
receive waits for its turn: else one of them runs ahead and takes the link from the one that is waited for (up to 1.5 times the
time of a double binary tree).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...model import schedule as model

#: (step of the schedule, index of the receive in that step)
Place = tuple[int, int]


def plan(schedule: model.Schedule) -> tuple[tuple[Place, ...], ...]:
    """Per step the receives that are posted when it begins, in order."""
    posted: list[list[Place]] = [[] for _ in schedule]
    last_use: dict[int, int] = {}
    last_post: dict[int, int] = {}
    scratch, streams = _Scratch(schedule), _Streams(schedule)
    for index, step in enumerate(schedule):
        last_use.update((chunk, index - 1) for copy in step.copies for chunk in (copy.source, copy.target))
        for number, recv in enumerate(step.recvs):
            at = max(last_post.get(recv.peer, 0), streams.turn(step, recv))
            if staged(step, recv):
                at = scratch.take(len(recv.chunks), at, index)
            else:
                at = max(at, *(last_use.get(chunk, -1) + 1 for chunk in recv.chunks))
            last_post[recv.peer] = at
            posted[at].append((index, number))
        last_use.update((chunk, index) for chunk in _used(step))
        streams.passed(step, index)
    return tuple(tuple(places) for places in posted)


def staged(step: model.Step, recv: model.Recv) -> bool:
    """Whether a receive goes to scratch first: what is combined, scattered over the buffer, sent in the same step, or a token."""
    if recv.reduce or not recv.chunks:
        return True
    first = recv.chunks[0]
    if recv.chunks != tuple(range(first, first + len(recv.chunks))):
        return True
    return any(chunk in send.chunks for send in step.sends for chunk in recv.chunks)


def scratch(schedule: model.Schedule) -> int:
    """The most chunks that receives hold beside the buffer at one time."""
    taken = [0] * len(schedule)
    for at, places in enumerate(plan(schedule)):
        for index, number in places:
            recv = schedule[index].recvs[number]
            for step in range(at, index + 1) if staged(schedule[index], recv) else ():
                taken[step] += len(recv.chunks)
    return max(taken, default=0)


def _used(step: model.Step) -> Iterator[int]:
    for send in step.sends:
        yield from send.chunks
    for recv in step.recvs:
        yield from recv.chunks


class _Scratch:
    """How many chunks of scratch are taken at each step."""

    def __init__(self, schedule: model.Schedule) -> None:
        messages = [recv.chunks for step in schedule for recv in step.recvs]
        self._limit = max([len({chunk for one in messages for chunk in one}), *(2 * len(one) for one in messages)])
        self._taken = [0] * len(schedule)

    def take(self, chunks: int, earliest: int, index: int) -> int:
        """From which step on there is room until the end of step ``index``; at the latest from that step itself."""
        at = index + 1
        while at > earliest and self._taken[at - 1] + chunks <= self._limit:
            at -= 1
        at = min(at, index)
        for step in range(at, index + 1):
            self._taken[step] += chunks
        return at


class _Streams:
    """Peers that send more than two messages, and when each has sent the last one so far."""

    def __init__(self, schedule: model.Schedule) -> None:
        count = Counter(recv.peer for step in schedule for recv in step.recvs)
        self._last = {peer: -1 for peer, messages in count.items() if messages > 2}

    def turn(self, step: model.Step, recv: model.Recv) -> int:
        """The first step in which no other stream is awaited before this one, but those that are awaited together with it."""
        if recv.peer not in self._last:
            return 0
        together = {one.peer for one in step.recvs}
        return 1 + max((last for peer, last in self._last.items() if peer not in together), default=-1)

    def passed(self, step: model.Step, index: int) -> None:
        self._last.update((recv.peer, index) for recv in step.recvs if recv.peer in self._last)
