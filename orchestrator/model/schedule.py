"""Schedules of collective algorithms: steps of copies, sends, receives and reductions of chunks; and their cost."""

from __future__ import annotations

from .frozen import dataclass, replace

#: The operations, by their names for users.
OPERATIONS = (
    "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "send-recv",
    "barrier",
)  # fmt: skip
#: Operations with a root.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Operations that reduce.
REDUCING = ("all-reduce", "reduce-scatter", "reduce")
#: Operations whose size S is the total of all ranks' blocks; for the others, S is the buffer of one rank.
TOTAL = ("all-gather", "reduce-scatter", "gather", "scatter")
#: Operations whose buffer of S has one block per rank.
IN_BLOCKS = (*TOTAL, "all-to-all")
#: Bytes of a message without chunks.
TOKEN = 4
#: Bytes from which a message takes long enough on the wire that it waits for its turn (Recv.in_turn, Step.in_turn).
LARGE = 1 << 12


@dataclass(frozen=True, slots=True)
class Send:
    """A message to rank ``peer``: the chunks in this order. Without chunks it is a token of 4 bytes."""

    peer: int
    chunks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recv:
    """A message from rank ``peer``; with ``reduce`` it is combined with the rank's own chunks, else it replaces them.

    It takes effect at the end of its step, so a chunk may be sent and received in the same step. ``in_turn``: a message of LARGE
    bytes or more is posted when its step has begun, not earlier. That is right where another message could share the port: ports
    do not share their rate evenly, so that one message falls behind and delays the ranks that wait for it.
    """

    peer: int
    chunks: tuple[int, ...] = ()
    reduce: bool = False
    in_turn: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy chunk ``source`` to chunk ``target``."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Step:
    """Concurrent transfers; the step ends when all of them have ended. Copies are made first, before the sends.

    ``in_turn``: if one of its messages has LARGE bytes or more, each is sent when the one before it has been sent.
    """

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()
    copies: tuple[Copy, ...] = ()
    in_turn: bool = False


Schedule = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """``rounds``: consecutive messages; ``volume``: traffic through the busiest port, in units of the size n."""

    rounds: float
    volume: float

    def seconds(self, n: float, alpha: float, beta: float) -> float:
        """The time for ``n`` bytes with ``alpha`` seconds per message and ``beta`` seconds per byte."""
        return self.rounds * alpha + self.volume * n * beta


def rerooted(schedule: Schedule, operation: str, root: int, world: int) -> Schedule:
    """The steps of rank ``(r + root) % world``, derived from the steps of rank ``r`` in a schedule for root 0.

    Ranks are rotated by ``root``, and also chunks that belong to ranks (gather, scatter).
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
            in_turn=step.in_turn,
        )
        for step in schedule
    )
