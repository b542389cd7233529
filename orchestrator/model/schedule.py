"""What a collective algorithm is made of: steps of sends, receives and reductions over chunk indices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """Send chunk ``chunk`` of this rank's buffer to rank ``peer``."""

    peer: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive chunk ``chunk`` from ``peer``; with ``reduce`` it is added to the own chunk, else it replaces it."""

    peer: int
    chunk: int
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Sends and receives that are in flight together; the step ends when all of them have ended."""

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()


Schedule = tuple[Step, ...]
