"""Plans when each receive of a schedule is posted: as early as possible without overwriting chunks in use. Pure.

A receive that is posted late makes its sender wait for a round trip first; on loopback with busy cores that tripled the time
of a ring. A staged receive goes to scratch memory and can be posted at once, while scratch suffices: about the size of the
buffer. Other receives wait until no earlier step reads or writes their chunks. Receives from one peer stay in order, because
transports match them by it. If two peers alternate in sending long streams, as in trees with segments, a receive waits for its
turn: otherwise one stream overtakes and takes bandwidth from the one that is needed (up to 1.5 times the time of a double
binary tree). An algorithm says which other receives wait for their turn, if they are large (``Recv.in_turn``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...model import schedule as model

#: (step of the schedule, index of the receive in that step)
ReceiveId = tuple[int, int]


def plan(schedule: model.Schedule, sizes: Sequence[float] = ()) -> tuple[tuple[ReceiveId, ...], ...]:
    """Return the receives that are posted when each step begins, in order. ``sizes``: bytes of each chunk; none: no message is large."""
    posted: list[list[ReceiveId]] = [[] for _ in schedule]
    last_use: dict[int, int] = {}
    last_post: dict[int, int] = {}
    scratch, streams = _Scratch(schedule), _Streams(schedule)
    for index, step in enumerate(schedule):
        last_use.update((chunk, index - 1) for copy in step.copies for chunk in (copy.source, copy.target))
        for number, recv in enumerate(step.recvs):
            at = max(
                last_post.get(recv.peer, 0),
                index if recv.in_turn and _is_large(recv, sizes) else streams.turn(step, recv),
            )
            if staged(step, recv):
                at = scratch.take(len(recv.chunks), at, index)
            else:
                at = max(at, *(last_use.get(chunk, -1) + 1 for chunk in recv.chunks))
            last_post[recv.peer] = at
            posted[at].append((index, number))
        last_use.update((chunk, index) for chunk in _used(step))
        streams.advance(step, index)
    return tuple(tuple(receives) for receives in posted)


def sends_in_turn(step: model.Step, sizes: Sequence[float]) -> bool:
    """Return whether each message of the step is sent when the one before it has been sent."""
    return step.in_turn and any(_is_large(send, sizes) for send in step.sends)


def staged(step: model.Step, recv: model.Recv) -> bool:
    """Return whether a receive goes to scratch first: it is reduced, not contiguous, sent in the same step, or a token."""
    if recv.reduce or not recv.chunks:
        return True
    first = recv.chunks[0]
    if recv.chunks != tuple(range(first, first + len(recv.chunks))):
        return True
    return any(chunk in send.chunks for send in step.sends for chunk in recv.chunks)


def scratch(schedule: model.Schedule) -> int:
    """The most chunks of scratch that receives need at a time."""
    taken = [0] * len(schedule)
    for at, receives in enumerate(plan(schedule)):
        for index, number in receives:
            recv = schedule[index].recvs[number]
            for step in range(at, index + 1) if staged(schedule[index], recv) else ():
                taken[step] += len(recv.chunks)
    return max(taken, default=0)


def _is_large(message: model.Send | model.Recv, sizes: Sequence[float]) -> bool:
    return sum(sizes[chunk] for chunk in message.chunks if sizes) >= model.LARGE


def _used(step: model.Step) -> Iterator[int]:
    for send in step.sends:
        yield from send.chunks
    for recv in step.recvs:
        yield from recv.chunks


class _Scratch:
    """The chunks of scratch in use at each step."""

    def __init__(self, schedule: model.Schedule) -> None:
        messages = [recv.chunks for step in schedule for recv in step.recvs]
        self._limit = max(
            [len({chunk for chunks in messages for chunk in chunks}), *(2 * len(chunks) for chunks in messages)]
        )
        self._taken = [0] * len(schedule)

    def take(self, chunks: int, earliest: int, index: int) -> int:
        """Reserve scratch until the end of step ``index``; return the step from which it is free, at the latest ``index``."""
        at = index + 1
        while at > earliest and self._taken[at - 1] + chunks <= self._limit:
            at -= 1
        at = min(at, index)
        for step in range(at, index + 1):
            self._taken[step] += chunks
        return at


class _Streams:
    """Peers that send more than two messages, and the step of the last message of each so far."""

    def __init__(self, schedule: model.Schedule) -> None:
        count = Counter(recv.peer for step in schedule for recv in step.recvs)
        self._last = {peer: -1 for peer, messages in count.items() if messages > 2}

    def turn(self, step: model.Step, recv: model.Recv) -> int:
        """The first step at which no other stream comes before this one, except those of the same step."""
        if recv.peer not in self._last:
            return 0
        together = {other.peer for other in step.recvs}
        return 1 + max((last for peer, last in self._last.items() if peer not in together), default=-1)

    def advance(self, step: model.Step, index: int) -> None:
        self._last.update((recv.peer, index) for recv in step.recvs if recv.peer in self._last)
