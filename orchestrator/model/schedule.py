"""What a collective algorithm is made of: steps of copies, sends, receives and reductions over chunk indices, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Every operation, by the name that users say.
OPERATIONS = (
    "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "send-recv",
    "barrier",
)  # fmt: skip
#: Those with a root.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Bytes of a message without chunks.
TOKEN = 4


@dataclass(frozen=True, slots=True)
class Send:
    """One message to rank ``peer``: the chunks in this order. Without chunks it is a token of 4 bytes."""

    peer: int
    chunks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recv:
    """One message from rank ``peer``; with ``reduce`` it is combined with the own chunks, else it replaces them.

    It takes effect at the end of its step, so a chunk may be sent and received in the same one.
    """

    peer: int
    chunks: tuple[int, ...] = ()
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Chunk ``target`` becomes what chunk ``source`` is."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Step:
    """What is in flight together; the step ends when all of it has ended. Copies are made when it is entered, before the sends."""

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()
    copies: tuple[Copy, ...] = ()


Schedule = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """``rounds``: messages that follow one another; ``volume``: what passes the busiest port, in units of the size n."""

    rounds: float
    volume: float

    def seconds(self, n: float, alpha: float, beta: float) -> float:
        """The time for ``n`` bytes with ``alpha`` seconds per message and ``beta`` seconds per byte."""
        return self.rounds * alpha + self.volume * n * beta


def rerooted(schedule: Schedule, operation: str, root: int, world: int) -> Schedule:
    """The steps of rank ``(r + root) % world``, made from those of rank ``r`` in a schedule for root 0.

    Ranks are turned by ``root``; where chunks belong to ranks (gather, scatter) chunks are as well.
    """
    turned = operation in ("gather", "scatter")

    def moved(rank: int) -> int:
        return (rank + root) % world

    def chunks(chunk_ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(moved(chunk) for chunk in chunk_ids) if turned else chunk_ids

    return tuple(
        Step(
            sends=tuple(Send(moved(send.peer), chunks(send.chunks)) for send in step.sends),
            recvs=tuple(replace(recv, peer=moved(recv.peer), chunks=chunks(recv.chunks)) for recv in step.recvs),
            copies=tuple(Copy(*chunks((copy.source, copy.target))) for copy in step.copies),
        )
        for step in schedule
    )
