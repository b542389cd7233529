"""The hosts, nodes, gangs and the agenda of a bed in memory (see fake.py)."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model.event import Clock, Command, Event, Source
from ..model.payload import EventType


@dataclass(kw_only=True)
class FakeNode:
    """A node: its incarnation, whether it lives or is stopped, and what was done with it (``done``: key -> times)."""

    name: str
    incarnation: str
    host: str = "here"
    ordinal: int = 1
    alive: bool = True
    paused: bool = False
    done: Counter[str] = field(default_factory=Counter)
    #: What was answered under which key, by the agent or the keeper, as their done/ directories keep it.
    outcomes: dict[str, tuple[EventType, Mapping[str, Any]]] = field(default_factory=dict)
    inbox: list[Command] = field(default_factory=list)
    beats: int = 0
    #: The heart-beat that the controller has heard last.
    shown: tuple[str, int] = ("", 0)
    #: It ended with its host, and nobody has told yet.
    fell: bool = False


@dataclass(kw_only=True)
class FakeHost:
    """A host: ``kept``: what was said there and not heard; ``waiting``: what was sent there and has not arrived."""

    name: str
    boot: str = "fake"
    #: How far its clock is ahead of the controller's, in seconds.
    ahead: float = 0.0
    up: bool = True
    linked: bool = True
    ssh: bool = True
    #: Whether the controller's connection stands: one that was lost is made again some time after the host is back.
    connected: bool = True
    engine: bool = True
    lost_for_good: bool = False
    kept: list[Event] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    #: What has arrived there, when, and of which nobody knows it yet should the link be lost now.
    arrived: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def reachable(self) -> bool:
        """Whether it answers a new connection."""
        return self.up and self.linked and self.ssh

    @property
    def answers(self) -> bool:
        """Whether the controller hears from it."""
        return self.reachable and self.connected


@dataclass(kw_only=True)
class FakeGang:
    """The ranks of one epoch: rank -> node. ``held``: rank -> hold id."""

    epoch: int
    size: int
    last: int
    step: int
    holds: Sequence[Mapping[str, Any]]
    ranks: dict[int, str] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    over: bool = False


class Agenda:
    """What happens when, in virtual seconds; ties in the order in which they were put down."""

    def __init__(self, time: float) -> None:
        self.time = time
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    def step(self, end: float) -> bool:
        """Let the next thing happen, if it is due by ``end``."""
        if not self._due or self._due[0][0] > end:
            return False
        self.time, _, what = heapq.heappop(self._due)
        what()
        return True


class Voices:
    """Numbers what each writer says: an agent's or a rank's incarnation, the keeper of a host, the holder outside.

    Its words stay in order, other writers' may overtake them.
    """

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, ...]] = Counter()
        self._last: dict[tuple[str, ...], float] = {}

    def event(
        self,
        pen: tuple[str, ...],
        by: tuple[str, str | None, str],
        type: EventType,
        f: str,
        value: Mapping[str, Any],
        at: Clock,
        *,
        key: str | None,
        epoch: int | None,
    ) -> Event:
        self._numbers[pen] += 1
        node, incarnation, writer = by
        source = Source(node=node, incarnation=incarnation, writer=writer, n=self._numbers[pen])
        return Event(type=type, f=f, key=key, node=node, epoch=epoch, value=dict(value), at=at, source=source)

    def when(self, pen: tuple[str, ...], soonest: float) -> float:
        self._last[pen] = max(self._last.get(pen, 0.0), soonest)
        return self._last[pen]
