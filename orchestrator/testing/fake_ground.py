"""The ground that a bed in memory stands on: virtual time, hosts that may go away, and voices that may not be heard."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..model.event import REPEATED, Clock, Command, Event
from ..model.payload import EventType
from .fake_parts import Agenda, FakeHost, FakeNode, Voices

BEAT_S = 0.25
#: From power on to an answer.
BOOT_S = 1.0


class Ground:
    """See the module. ``hosts``: node -> host; without it all are on one."""

    def __init__(self, names: Sequence[str], *, seed: int, doubled: float, hosts: Mapping[str, str]) -> None:
        self.random = random.Random(seed)
        self.doubled = doubled
        self.nodes = {
            name: FakeNode(name=name, incarnation=f"{name}-1", host=hosts.get(name, "here")) for name in names
        }
        for node in self.nodes.values():
            node.shown = (node.incarnation, 0)
        self.hosts = {node.host: FakeHost(name=node.host) for node in self.nodes.values()}
        self.said: list[Event] = []
        self.unacknowledged_s = 0.0
        #: From a host's return until the controller is connected to it again.
        self.reconnect_s = 0.0
        self._agenda = Agenda(100.0)
        self._voices = Voices()
        self._later(BEAT_S, self._beat)

    @property
    def time(self) -> float:
        return self._agenda.time

    def now(self) -> Clock:
        return Clock(boot="fake", mono=self.time, wall=self.time)

    def _clock(self, node: str, writer: str) -> Clock:
        """That of the writer's host."""
        host = self.host_of(node)
        mono = self.time + host.ahead
        return self.now() if writer == "outside" else Clock(boot=host.boot, mono=mono, wall=mono)

    def at(self, after_s: float, what: Callable[[], None]) -> None:
        """Let something happen later, e.g. ``lambda: bed.kill("n1")`` by hand."""
        self._later(after_s, what)

    def host_of(self, name: str) -> FakeHost:
        return self.hosts[self.nodes[name].host]

    # --- hosts --------------------------------------------------------------------------------------------------------

    def cut(self, host: str) -> None:
        """The link is down: what is said there is kept, what is sent there waits."""
        self._lose(self.hosts[host])
        self.hosts[host].linked = False

    def join(self, host: str) -> None:
        self.hosts[host].linked = True
        self._reconnect(host)

    def power_off(self, host: str) -> None:
        """Everything there ends at once, and nobody can tell."""
        self._lose(self.hosts[host])
        self.hosts[host].up = False
        for node in self._on(host):
            node.fell = node.fell or node.alive
            node.alive, node.paused, node.inbox = False, False, []

    def power_on(self, host: str) -> None:
        """Later, and only if it comes back at all, its keeper tells which nodes are gone."""
        self._later(BOOT_S, lambda: self._booted(host))

    def _booted(self, host: str) -> None:
        if self.hosts[host].lost_for_good or self.hosts[host].up:
            return
        self.hosts[host].up = True
        for node in self._on(host):
            if node.fell:
                node.fell = False
                self._say(node.name, "keeper", "node.exit", {"code": None})
        self._reconnect(host)

    def ssh(self, host: str, *, on: bool) -> None:
        """Ranks there go on either way."""
        if not on:
            self._lose(self.hosts[host])
        self.hosts[host].ssh = on
        self._reconnect(host)

    def _on(self, host: str) -> list[FakeNode]:
        return [node for node in self.nodes.values() if node.host == host]

    def _reconnect(self, name: str) -> None:
        host = self.hosts[name]
        if host.reachable and not host.connected:
            connect = functools.partial(self._connect, host)
            self._later(self.reconnect_s, connect) if self.reconnect_s else connect()

    def _connect(self, host: FakeHost) -> None:
        if host.reachable:
            host.connected = True
            kept, host.kept = host.kept, []
            waiting, host.waiting = host.waiting, []
            self.said += kept
            for arrive in waiting:
                self._later(self._latency(), arrive)

    def _lose(self, host: FakeHost) -> None:
        """Whoever sent there just now does not know that it arrived, and sends it again."""
        host.connected = False
        arrived, host.arrived = host.arrived, []
        host.waiting += [arrive for when, arrive in arrived if self.time - when < self.unacknowledged_s]

    def _reach(self, command: Command, arrive: Callable[[Command], None]) -> None:
        """Hand a command to its host; where that does not answer, it waits for it."""
        host = self.host_of(str(command.node))
        if host.answers:
            host.arrived.append((self.time, lambda: self._reach(command, arrive)))
            arrive(command)
        else:
            host.waiting.append(lambda: self._reach(command, arrive))

    # --- saying -------------------------------------------------------------------------------------------------------

    def _answer(self, command: Command, type: EventType, value: Mapping[str, Any], writer: str = "agent") -> None:
        self.nodes[str(command.node)].outcomes.setdefault(command.key, (type, value))
        self._say(str(command.node), writer, command.f, value, type=type, key=command.key, epoch=command.epoch)

    def _repeated(self, command: Command, writer: str) -> bool:
        """Was it done before, or is it being done? An answer that there is is given again, and marked as such."""
        node = self.nodes[str(command.node)]
        if command.key in node.outcomes:
            type, value = node.outcomes[command.key]
            self._answer(command, type, {**value, REPEATED: True}, writer)
        return node.done[command.key] > 0 or command.key in node.outcomes

    def _say(
        self, node: str, writer: str, f: str, value: Mapping[str, Any], *,
        type: EventType = "note", key: str | None = None, epoch: int | None = None, incarnation: str | None = None,
    ) -> None:  # fmt: skip
        """Say it after a latency; one writer's words stay in order, different writers' may overtake each other."""
        by = (node, None if writer == "outside" else incarnation or self.nodes[node].incarnation, writer)
        pens = {"keeper": (self.nodes[node].host, writer), "outside": (writer,)}
        pen = pens.get(writer, (node, str(by[1]), writer))
        event = self._voices.event(pen, by, type, f, value, self._clock(node, writer), key=key, epoch=epoch)
        when = self._voices.when(pen, self.time + self._latency())
        again = (when + self._latency(),) if self.random.random() < self.doubled else ()
        heard_of = None if writer == "outside" else self.host_of(node)
        for moment in (when, *again):
            self._agenda.at(moment, lambda: self._hear(event, heard_of))

    def _hear(self, event: Event, host: FakeHost | None) -> None:
        (self.said if host is None or host.answers else host.kept).append(event)

    def _latency(self) -> float:
        return self.random.uniform(0.0005, 0.005)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        self._agenda.at(self.time + after_s, what)

    def _beat(self) -> None:
        for node in self.nodes.values():
            node.beats += node.alive and not node.paused
            if self.hosts[node.host].answers:
                node.shown = (node.incarnation, node.beats)
        self._later(BEAT_S, self._beat)
