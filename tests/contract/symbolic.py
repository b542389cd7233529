"""Executes the schedules of all ranks on symbols, without torch: what every chunk holds, who waits for whom, who knows what.

A chunk's content is a bag of atoms (origin rank, chunk), kept as the chunk and a number with a count for every origin; None
is undefined. Messages travel in first-in, first-out order per pair of ranks. A step begins with its copies; a message is handed
over when both sides are in the step that has it, which is the strictest transport there is (a send may wait for its
receiver); a step ends when all of its messages were handed over, and only then receives take effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Bits for the count of one origin.
WIDTH = 16
#: (chunk that it was at first, counts of the origins)
Bag = tuple[int, int]
#: Bytes of a chunk at a rank.
Size = Callable[[int, int], int]


class Broken(Exception):
    """The schedules do not do what the operation promises."""


@dataclass
class Message:
    """``clock``: per rank how many of its steps the sender knew to be over. ``received``: in which step it came in."""

    source: int
    target: int
    chunks: tuple[int, ...]
    bags: list[Bag]
    knows: int
    clock: tuple[int, ...]
    received: int = -1


@dataclass
class Rank:
    """``knows``: bit r is set once rank r is known to have begun. ``got``: messages by their place in the current step."""

    steps: Any
    content: list[Bag | None]
    knows: int
    clock: list[int]
    at: int = -1
    open: int = 0
    posted: int = 0
    got: dict[int, Message] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run came to. ``messages`` in the order in which they were handed over."""

    content: list[list[Bag | None]]
    knows: list[int]
    messages: list[Message]
    steps: list[int]


class Execution:
    """One run of all schedules."""

    def __init__(self, schedules: Sequence[Any], content: list[list[Bag | None]], size: Size, causal: bool) -> None:
        self._world, self._size, self._causal = len(schedules), size, causal
        self._ranks = [
            Rank(steps, row, 1 << number, [0] * len(schedules))
            for number, (steps, row) in enumerate(zip(schedules, content, strict=True))
        ]
        self._offered: dict[tuple[int, int], deque[Message]] = {}
        self._wanted: dict[tuple[int, int], deque[int]] = {}
        self._messages: list[Message] = []
        self._ready: deque[int] = deque(range(len(schedules)))

    def run(self) -> Outcome:
        """Raises Broken on a deadlock, a message that nobody takes, or anything that a step cannot do."""
        while self._ready:
            number = self._ready.popleft()
            rank = self._ranks[number]
            if rank.at >= 0:
                self._end(number, rank)
            rank.at += 1
            if rank.at < len(rank.steps):
                self._enter(number, rank, rank.steps[rank.at])
        self._closed()
        return Outcome(
            [rank.content for rank in self._ranks],
            [rank.knows for rank in self._ranks],
            self._messages,
            [len(rank.steps) for rank in self._ranks],
        )

    def _enter(self, number: int, rank: Rank, step: Any) -> None:
        for copy in step.copies:
            self._check(number, copy, (copy.source, copy.target))
            self._fits(number, copy.source, number, copy.target)
            rank.content[copy.target] = self._held(number, copy.source)
        rank.open = len(step.sends) + len(step.recvs)
        clock = tuple(rank.clock) if self._causal else ()
        for send in step.sends:
            self._check(number, send, send.chunks)
            bags = [self._held(number, chunk) for chunk in send.chunks]
            message = Message(number, send.peer, send.chunks, bags, rank.knows, clock)
            self._offered.setdefault((number, send.peer), deque()).append(message)
        written: dict[int, bool] = {}
        for place, recv in enumerate(step.recvs):
            self._check(number, recv, recv.chunks)
            for chunk in recv.chunks:
                if not (written.setdefault(chunk, recv.reduce) and recv.reduce) and chunk in _before(step, place):
                    raise Broken(f"rank {number}: chunk {chunk} is written twice in one step")
        rank.posted = 0
        self._post(number, rank, step)
        for peer in {send.peer for send in step.sends}:
            self._hand_over(number, peer)
        if rank.open == 0 and not (step.sends or step.recvs):
            self._ready.append(number)

    def _post(self, number: int, rank: Rank, step: Any) -> None:
        """The receives up to the next that has to wait for those before it."""
        first = rank.posted
        for recv in step.recvs[first:]:
            if recv.in_turn and len(rank.got) < rank.posted:
                break
            self._wanted.setdefault((recv.peer, number), deque()).append(rank.posted)
            rank.posted += 1
        for peer in {recv.peer for recv in step.recvs[first : rank.posted]}:
            self._hand_over(peer, number)

    def _hand_over(self, source: int, target: int) -> None:
        offered, wanted = self._offered.get((source, target)), self._wanted.get((source, target))
        while offered and wanted:
            message, place = offered.popleft(), wanted.popleft()
            receiver = self._ranks[target]
            message.received = receiver.at
            receiver.got[place] = message
            self._messages.append(message)
            if len(receiver.got) == receiver.posted:
                self._post(target, receiver, receiver.steps[receiver.at])
            for number in (source, target):
                self._ranks[number].open -= 1
                if self._ranks[number].open == 0:
                    self._ready.append(number)

    def _end(self, number: int, rank: Rank) -> None:
        for place, recv in enumerate(rank.steps[rank.at].recvs):
            message = rank.got.pop(place)
            if len(message.chunks) != len(recv.chunks):
                raise Broken(f"rank {number}: {recv} gets {message.chunks}")
            for chunk, source, bag in zip(recv.chunks, message.chunks, message.bags, strict=True):
                self._fits(message.source, source, number, chunk)
                rank.content[chunk] = self._sum(number, chunk, bag) if recv.reduce else bag
            rank.knows |= message.knows
            if self._causal:
                rank.clock = [max(pair) for pair in zip(rank.clock, message.clock, strict=True)]
        rank.clock[number] = rank.at + 1

    def _sum(self, number: int, chunk: int, bag: Bag) -> Bag:
        own = self._held(number, chunk)
        if own[0] != bag[0]:
            raise Broken(f"rank {number}: chunk {bag[0]} is added to chunk {own[0]}")
        return own[0], own[1] + bag[1]

    def _held(self, number: int, chunk: int) -> Bag:
        bag = self._ranks[number].content[chunk]
        if bag is None:
            raise Broken(f"rank {number}: chunk {chunk} is used before it is there")
        return bag

    def _fits(self, source: int, sent: int, target: int, taken: int) -> None:
        if self._size(source, sent) != self._size(target, taken):
            raise Broken(f"rank {target}: chunk {taken} has not the size of chunk {sent} of rank {source}")

    def _check(self, number: int, transfer: Any, chunks: Sequence[int]) -> None:
        peer = getattr(transfer, "peer", None)
        count = len(self._ranks[number].content)
        if peer is not None and not (0 <= peer < self._world and peer != number):
            raise Broken(f"rank {number}: impossible {transfer}")
        if not all(0 <= chunk < count for chunk in chunks) or (peer is not None and len(set(chunks)) < len(chunks)):
            raise Broken(f"rank {number}: impossible {transfer}")

    def _closed(self) -> None:
        stuck = [number for number, rank in enumerate(self._ranks) if rank.at < len(rank.steps)]
        if stuck:
            raise Broken(f"deadlock: ranks {stuck} wait for ever")


def _before(step: Any, place: int) -> set[int]:
    return {chunk for recv in step.recvs[:place] for chunk in recv.chunks}


def verify(
    operation: str, schedules: Sequence[Any], chunks: int, root: int = 0, *, even: bool, causal: bool
) -> Outcome:
    """Every rank ends with what ``operation`` promises, each contribution exactly once. Raises Broken.

    ``even``: chunks have one size; else every chunk has another. ``causal``: messages get their clocks.
    """
    world = len(schedules)
    _count(operation, chunks, world)
    content = [[_begin(operation, rank, chunk, world, root) for chunk in range(chunks)] for rank in range(world)]
    outcome = Execution(schedules, content, _one_size if even else _sizes(operation, world), causal).run()
    for rank, row in enumerate(outcome.content):
        for chunk, bag in enumerate(row):
            wanted = _end(operation, rank, chunk, world, root)
            if wanted is not None and bag != wanted:
                raise Broken(f"rank {rank}, chunk {chunk}: holds {describe(bag)}, not {describe(wanted)}")
    if operation == "barrier":
        _all_known(outcome)
    return outcome


def describe(bag: Bag | None) -> str:
    """A bag in words."""
    if bag is None:
        return "nothing"
    counts = {rank: bag[1] >> (WIDTH * rank) & ((1 << WIDTH) - 1) for rank in range(bag[1].bit_length() // WIDTH + 1)}
    return f"chunk {bag[0]} of {', '.join(f'{rank} x{count}' for rank, count in counts.items() if count)}"


def _count(operation: str, chunks: int, world: int) -> None:
    right = {
        "all-to-all": chunks >= 2 * world and chunks % world == 0, "send-recv": chunks == 2, "barrier": chunks == 0,
        "all-gather": chunks == world, "reduce-scatter": chunks == world, "gather": chunks == world,
        "scatter": chunks == world,
    }.get(operation, chunks >= 1)  # fmt: skip
    if not right:
        raise Broken(f"{operation}: {chunks} chunks among {world} ranks")


def _begin(operation: str, rank: int, chunk: int, world: int, root: int) -> Bag | None:
    has = {
        "all-gather": chunk == rank, "gather": chunk == rank, "broadcast": rank == root, "scatter": rank == root,
        "all-to-all": chunk < world, "send-recv": chunk == 0,
    }.get(operation, True)  # fmt: skip
    return (chunk, _single(rank)) if has else None


def _end(operation: str, rank: int, chunk: int, world: int, root: int) -> Bag | None:
    """None: it may hold anything."""
    everybody = chunk, sum(_single(other) for other in range(world))
    if operation == "all-to-all":
        return (rank, _single(chunk - world)) if world <= chunk < 2 * world else None
    if operation == "send-recv":
        return (0, _single((rank - 1) % world)) if chunk == 1 else None
    promised: dict[str, tuple[bool, Bag]] = {
        "all-reduce": (True, everybody),
        "reduce": (rank == root, everybody),
        "reduce-scatter": (chunk == rank, everybody),
        "all-gather": (True, (chunk, _single(chunk))),
        "gather": (rank == root, (chunk, _single(chunk))),
        "broadcast": (True, (chunk, _single(root))),
        "scatter": (chunk == rank, (chunk, _single(root))),
    }
    applies, bag = promised[operation]
    return bag if applies else None


def _single(rank: int) -> int:
    return 1 << (WIDTH * rank)


def _one_size(rank: int, chunk: int) -> int:
    del rank, chunk
    return 1


def _sizes(operation: str, world: int) -> Size:
    """Every chunk of another size; in an all-to-all also every pair of ranks."""

    def size(rank: int, chunk: int) -> int:
        if operation == "send-recv":
            return 1
        if operation != "all-to-all":
            return chunk + 1
        kind, other = divmod(chunk, world)
        source, target = (other, rank) if kind == 1 else (rank, other)
        return 1 + source * world + target + (kind == 2) * world * world

    return size


def _all_known(outcome: Outcome) -> None:
    everybody = (1 << len(outcome.knows)) - 1
    for rank, knows in enumerate(outcome.knows):
        if knows != everybody:
            raise Broken(f"rank {rank}: leaves the barrier before it knows of all others")


def in_order(messages: Sequence[Message], *, but_to_the_right: bool = False) -> None:
    """Each message with chunks is sent when its sender knows that its own last one has been received. Raises Broken.

    ``but_to_the_right``: after one to the right neighbour anything may follow at once.
    """
    last: dict[int, Message] = {}
    for message in _by_sending(messages):
        before = last.get(message.source)
        free = before and but_to_the_right and before.target == (before.source + 1) % len(before.clock)
        if before and not free and not follows(message, before):
            raise Broken(f"rank {message.source}: sends to {message.target} before {before.target} has what it got")
        last[message.source] = message


def one_at_a_time(messages: Sequence[Message]) -> None:
    """No two messages with chunks can be under way at once. Raises Broken."""
    ordered = _by_sending(messages)
    for index, message in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if not (follows(message, other) or follows(other, message)):
                pairs = f"{message.source} to {message.target} and {other.source} to {other.target}"
                raise Broken(f"messages at the same time: {pairs}")


def follows(message: Message, before: Message) -> bool:
    """Whether the sender of ``message`` knew that ``before`` had been received."""
    return message.clock[before.target] > before.received


def _by_sending(messages: Sequence[Message]) -> list[Message]:
    """Those with chunks, per sender in the order of its steps."""
    return sorted(
        (message for message in messages if message.chunks),
        key=lambda message: (message.source, message.clock[message.source]),
    )
