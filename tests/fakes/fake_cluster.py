"""The nodes and hosts of a bed in memory: virtual time, hosts that can be lost, and events that arrive after a latency."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.model.event import REPEATED, Clock, Command, Event, Source
from orchestrator.model.frozen import dataclass, field
from orchestrator.model.payload import EventType

BEAT_S = 0.25
#: From power on until a host responds.
BOOT_S = 1.0
START_S = 100.0
#: The writer of events that come from the lease holder on the controller's machine.
OUTSIDE = "outside"


@dataclass(kw_only=True)
class FakeNode:
    """A node: its incarnation, whether it lives or is stopped, and how often each command was performed (``done``)."""

    name: str
    incarnation: str
    host: str = "here"
    ordinal: int = 1
    alive: bool = True
    paused: bool = False
    done: Counter[str] = field(default_factory=Counter)
    #: Outcomes by command key, as the done/ directories of agent and keeper keep them.
    outcomes: dict[str, tuple[EventType, Mapping[str, Any]]] = field(default_factory=dict)
    inbox: list[Command] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: {"system.json": b'{"torch": "none"}\n'})
    beats: int = 0
    #: The heart-beat that the controller received last.
    shown: tuple[str, int] = ("", 0)
    #: The node ended with its host, and no keeper has reported it yet.
    ended_with_host: bool = False


@dataclass(kw_only=True)
class FakeHost:
    """A host. ``kept``: events written there and not received yet; ``waiting``: commands that have not arrived there."""

    name: str
    boot: str = "fake"
    #: Offset of its clock from the controller's clock, in seconds.
    clock_offset_s: float = 0.0
    up: bool = True
    linked: bool = True
    ssh: bool = True
    #: Whether the controller's connection is up. A lost connection comes back some time after the host does.
    connected: bool = True
    engine: bool = True
    lost_for_good: bool = False
    kept: list[Event] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    #: Commands that arrived, with their time. The controller does not know that they arrived if the link is lost now.
    arrived: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def reachable(self) -> bool:
        """Whether it accepts a new connection."""
        return self.up and self.linked and self.ssh

    @property
    def answers(self) -> bool:
        """Whether the controller receives its events."""
        return self.reachable and self.connected


class Agenda:
    """Work by virtual time in seconds; work of the same time runs in the order in which it was added."""

    def __init__(self, time: float) -> None:
        self.time = time
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), work))

    def step(self, end: float) -> bool:
        """Run the next work if it is due by ``end``."""
        if not self._due or self._due[0][0] > end:
            return False
        self.time, _, work = heapq.heappop(self._due)
        work()
        return True


class EventWriters:
    """Numbers the events of each writer: an agent's or a rank's incarnation, the keeper of a host, the holder outside.

    Events of one writer stay in order; events of different writers may overtake each other.
    """

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, ...]] = Counter()
        self._last: dict[tuple[str, ...], float] = {}

    def event(
        self,
        writer_id: tuple[str, ...],
        by: tuple[str, str | None, str],
        type: EventType,
        f: str,
        value: Mapping[str, Any],
        at: Clock,
        *,
        key: str | None,
        epoch: int | None,
    ) -> Event:
        self._numbers[writer_id] += 1
        node, incarnation, writer = by
        source = Source(node=node, incarnation=incarnation, writer=writer, n=self._numbers[writer_id])
        return Event(type=type, f=f, key=key, node=node, epoch=epoch, value=dict(value), at=at, source=source)

    def arrival(self, writer_id: tuple[str, ...], soonest: float) -> float:
        self._last[writer_id] = max(self._last.get(writer_id, 0.0), soonest)
        return self._last[writer_id]


class FakeCluster:
    """See the module. ``hosts``: node -> host; without it all nodes are on one host.

    ``doubled``: the probability that an event is delivered twice. ``unacknowledged_s``: commands that reached a host in
    this time before it was lost are sent again. ``reconnect_s``: from a host's return until the controller is connected.
    """

    def __init__(self, names: Sequence[str], *, seed: int, doubled: float, hosts: Mapping[str, str]) -> None:
        self.random = random.Random(seed)
        self.doubled = doubled
        self.unacknowledged_s = 0.0
        self.reconnect_s = 0.0
        self.nodes = {
            name: FakeNode(name=name, incarnation=f"{name}-1", host=hosts.get(name, "here")) for name in names
        }
        for node in self.nodes.values():
            node.shown = (node.incarnation, 0)
        self.hosts = {node.host: FakeHost(name=node.host) for node in self.nodes.values()}
        self.received: list[Event] = []
        self.agenda = Agenda(START_S)
        #: Called with the name of a node that was killed.
        self.on_node_killed: Callable[[str], None] = lambda name: None
        self._writers = EventWriters()
        self.later(BEAT_S, self._beat)

    @property
    def time(self) -> float:
        return self.agenda.time

    def now(self) -> Clock:
        return Clock(boot="fake", mono=self.time, wall=self.time)

    def latency(self) -> float:
        return self.random.uniform(0.0005, 0.005)

    def later(self, after_s: float, work: Callable[[], None]) -> None:
        self.agenda.at(self.time + after_s, work)

    def host_of(self, name: str) -> FakeHost:
        return self.hosts[self.nodes[name].host]

    def nodes_on(self, host: str) -> list[FakeNode]:
        return [node for node in self.nodes.values() if node.host == host]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def start(self, node: FakeNode) -> bool:
        """Start a node that does not live; whether it lives now."""
        if not node.alive and self.hosts[node.host].engine:
            node.alive, node.ordinal = True, node.ordinal + 1
            node.incarnation = f"{node.name}-{node.ordinal}"
        return node.alive

    def kill(self, name: str) -> None:
        """End a node; its keeper reports the exit."""
        node = self.nodes[name]
        if not node.alive:
            return
        node.alive, node.paused, node.inbox = False, False, []
        incarnation = node.incarnation
        self.later(
            self.latency(),
            lambda: self.emit(name, "keeper", "node.exit", {"code": -9, "left": 0}, incarnation=incarnation),
        )
        self.on_node_killed(name)

    def stop_engine(self, host: str) -> None:
        """The containers end with their engine; the keeper is no container, so it reports them."""
        self.hosts[host].engine = False
        for node in self.nodes_on(host):
            self.kill(node.name)

    def start_engine(self, host: str) -> None:
        self.hosts[host].engine = True

    # --- hosts --------------------------------------------------------------------------------------------------------

    def cut(self, host: str) -> None:
        """Take the link down: events stay on the host, commands wait."""
        self._lose(self.hosts[host])
        self.hosts[host].linked = False

    def join(self, host: str) -> None:
        self.hosts[host].linked = True
        self._reconnect(host)

    def power_off(self, host: str) -> None:
        """Every node of the host ends at once, and no keeper can report it."""
        self._lose(self.hosts[host])
        self.hosts[host].up = False
        for node in self.nodes_on(host):
            node.ended_with_host = node.ended_with_host or node.alive
            node.alive, node.paused, node.inbox = False, False, []

    def power_on(self, host: str) -> None:
        """After the boot, unless the host is lost for good, its keeper reports which nodes ended."""
        self.later(BOOT_S, lambda: self._booted(host))

    def set_ssh(self, host: str, *, on: bool) -> None:
        """Start or stop sshd; ranks on the host continue."""
        if not on:
            self._lose(self.hosts[host])
        self.hosts[host].ssh = on
        self._reconnect(host)

    def restart_controller(self) -> None:
        """A new orchestrator starts: it has received no heart-beat of hosts that do not respond."""
        for node in self.nodes.values():
            if not self.hosts[node.host].answers:
                node.shown = ("", 0)

    def deliver(self, command: Command, arrive: Callable[[Command], None]) -> None:
        """Deliver a command to its host; while the host does not respond, the command waits."""
        host = self.host_of(str(command.node))
        if host.answers:
            host.arrived.append((self.time, lambda: self.deliver(command, arrive)))
            arrive(command)
        else:
            host.waiting.append(lambda: self.deliver(command, arrive))

    def _booted(self, host: str) -> None:
        if self.hosts[host].lost_for_good or self.hosts[host].up:
            return
        self.hosts[host].up = True
        for node in self.nodes_on(host):
            if node.ended_with_host:
                node.ended_with_host = False
                self.emit(node.name, "keeper", "node.exit", {"code": None})
        self._reconnect(host)

    def _reconnect(self, name: str) -> None:
        host = self.hosts[name]
        if host.reachable and not host.connected:
            connect = functools.partial(self._connect, host)
            self.later(self.reconnect_s, connect) if self.reconnect_s else connect()

    def _connect(self, host: FakeHost) -> None:
        if host.reachable:
            host.connected = True
            kept, host.kept = host.kept, []
            waiting, host.waiting = host.waiting, []
            self.received += kept
            for arrive in waiting:
                self.later(self.latency(), arrive)

    def _lose(self, host: FakeHost) -> None:
        """The controller does not know which of its latest commands arrived, so it sends them again."""
        host.connected = False
        arrived, host.arrived = host.arrived, []
        host.waiting += [arrive for when, arrive in arrived if self.time - when < self.unacknowledged_s]

    # --- events -------------------------------------------------------------------------------------------------------

    def respond(self, command: Command, type: EventType, value: Mapping[str, Any], writer: str = "agent") -> None:
        self.nodes[str(command.node)].outcomes.setdefault(command.key, (type, value))
        self.emit(str(command.node), writer, command.f, value, type=type, key=command.key, epoch=command.epoch)

    def is_repeated(self, command: Command, writer: str) -> bool:
        """Whether the command was, or is being, performed. A known outcome is sent again and marked as repeated."""
        node = self.nodes[str(command.node)]
        if command.key in node.outcomes:
            type, value = node.outcomes[command.key]
            self.respond(command, type, {**value, REPEATED: True}, writer)
        return node.done[command.key] > 0 or command.key in node.outcomes

    def emit(
        self, node: str, writer: str, f: str, value: Mapping[str, Any], *,
        type: EventType = "note", key: str | None = None, epoch: int | None = None, incarnation: str | None = None,
    ) -> None:  # fmt: skip
        """Write an event; the controller receives it after a latency, once or twice."""
        by = (node, None if writer == OUTSIDE else incarnation or self.nodes[node].incarnation, writer)
        special = {"keeper": (self.nodes[node].host, writer), OUTSIDE: (writer,)}
        writer_id = special.get(writer, (node, str(by[1]), writer))
        event = self._writers.event(writer_id, by, type, f, value, self._clock(node, writer), key=key, epoch=epoch)
        when = self._writers.arrival(writer_id, self.time + self.latency())
        duplicate = (when + self.latency(),) if self.random.random() < self.doubled else ()
        host = None if writer == OUTSIDE else self.host_of(node)
        for moment in (when, *duplicate):
            self.agenda.at(moment, lambda: self._receive(event, host))

    def _receive(self, event: Event, host: FakeHost | None) -> None:
        (self.received if host is None or host.answers else host.kept).append(event)

    def _clock(self, node: str, writer: str) -> Clock:
        host = self.host_of(node)
        mono = self.time + host.clock_offset_s
        return self.now() if writer == OUTSIDE else Clock(boot=host.boot, mono=mono, wall=mono)

    def _beat(self) -> None:
        for node in self.nodes.values():
            node.beats += node.alive and not node.paused
            if self.hosts[node.host].answers:
                node.shown = (node.incarnation, node.beats)
        self.later(BEAT_S, self._beat)
