"""A bed in memory with a virtual clock: agents answer, ranks step, nodes die, and nothing takes any real time.

For simulations: the orchestrator may be killed and built anew around the same FakeBed, which lives on. Latencies come
from a seeded generator, so that a seed is one interleaving; with ``doubled`` some events are delivered twice, and what
reached a host in the last ``unacknowledged_s`` before it was lost is sent again once it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import codec
from ..model.act import Act
from ..model.bed import BedSpec, BedStatus, HostSpec, NodeStatus
from ..model.event import Command, Event
from ..model.provider import Cursors, Fetched
from .fake_agents import Agents
from .fake_ground import BOOT_S
from .fake_parts import FakeNode


class FakeBed(Agents):
    """See the module. ``hands_off``: faults that are ordered but do nothing (a disarmed injector).

    ``held_before``: faults whose state to verify holds before they are injected.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        seed: int = 0,
        steps: int = 60,
        every: int = 5,
        doubled: float = 0.0,
        unacknowledged_s: float = 0.0,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(names, seed=seed, doubled=doubled, hosts=hosts or {}, steps=steps, every=every)
        self.unacknowledged_s = unacknowledged_s
        self.hands_off: set[str] = set()
        self.held_before: set[str] = set()

    # --- model.provider.Provider ------------------------------------------------------------------------------------------

    def warm_up(self, bed: BedSpec) -> None:
        """Nothing of it takes long."""

    def capabilities(self, host: str) -> frozenset[str]:
        return frozenset({"kill", "pause"})

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        return BedStatus(name="fake", nodes=tuple(self.status(name) for name in self.nodes))

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        return self.status(node)

    def prober(self, bed: BedSpec) -> None:
        return None

    def prepare(self, bed: BedSpec) -> None: ...
    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        return ()

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        return ()

    def open(self, bed: BedSpec, run: str) -> Cursors:
        return {"said": 0}

    def close(self) -> None: ...

    def put(self, files: Mapping[str, bytes]) -> str:
        return "payload"

    def perform(self, command: Command) -> None:
        act = self._keeper if command.f in ("node.apply", "node.kill", "fault.act", "fault.heal") else self._deliver
        outside = _holder(command) == "outside"
        self._later(self._latency(), lambda: act(command) if outside else self._reach(command, act))

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Moves the virtual clock to the next event, or by ``timeout_s``."""
        start, end = cursors.get("said", 0), self.time + timeout_s
        while len(self.said) == start and self._agenda.step(end):
            pass
        if len(self.said) == start:
            self._agenda.time = end
        return tuple(self.said[start:]), {"said": len(self.said)}

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        """As they were heard last."""
        return {
            node.name: (node.incarnation, node.beats) if self.hosts[node.host].answers else node.shown
            for node in self.nodes.values()
            if self.hosts[node.host].answers or node.shown[0]
        }

    def connect_anew(self) -> None:
        """For an orchestrator that has just come: of hosts that do not answer it has heard nothing."""
        for node in self.nodes.values():
            if not self.hosts[node.host].answers:
                node.shown = ("", 0)

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        return Fetched(path=path, size=0)

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return [self.fetch(node, path, to, limit) for path, to in wanted]

    def forget(self, bed: BedSpec, run: str) -> None: ...
    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return ()

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None: ...

    def status(self, name: str) -> NodeStatus:
        node = self.nodes[name]
        if not self.hosts[node.host].answers:
            return NodeStatus(name=name, state="unreachable", reason=f"host {node.host} does not answer")
        state = "dead" if not node.alive else "paused" if node.paused else "warm"
        return NodeStatus(name=name, state=state, incarnation=node.incarnation, ordinal=node.ordinal, pid=node.ordinal)  # type: ignore[arg-type]

    def kill(self, name: str) -> None:
        """The node is gone; its keeper notices."""
        node = self.nodes[name]
        if not node.alive:
            return
        node.alive, node.paused, node.inbox = False, False, []
        incarnation = node.incarnation
        self._later(
            self._latency(),
            lambda: self._say(name, "keeper", "node.exit", {"code": -9, "left": 0}, incarnation=incarnation),
        )
        for gang in self.gangs.values():
            if not gang.over and name in gang.ranks.values():
                self._break(gang, name)

    # --- keepers: one on each host, and the holder on the controller's machine, which is always there -------------------

    def _keeper(self, command: Command) -> None:
        name, by = str(command.node), _holder(command)
        node, value = self.nodes[name], command.value
        if self._repeated(command, by):
            return
        if command.f in ("node.kill", "fault.act") and command.incarnation not in (None, node.incarnation):
            self._answer(command, "fail", {"reason": "another incarnation"}, writer=by)
            return
        node.done[command.key] += 1
        if command.f == "node.kill":
            self.kill(name)
            self._answer(command, "ok", {**self._identity(node), "left": 0}, writer=by)
        elif command.f == "node.apply":
            good = self._start(node)
            why = {} if good else {"reason": "the engine does not answer"}
            self._answer(command, "ok" if good else "fail", {**self._identity(node), **why}, writer=by)
        elif command.f == "fault.act":
            self._inject(command, node, by)
        else:
            self._do(node, value["act"]["heal"])
            boots = any(one["args"].get("of") == "host" and one["kind"] == "power" for one in value["act"]["heal"])
            self._later(2 * BOOT_S if boots else 0.0, lambda: self._healed(command, node, by))

    def _inject(self, command: Command, node: FakeNode, by: str) -> None:
        id, act = command.value["id"], command.value["act"]
        self._say(node.name, by, "lease.armed", {"key": command.key, "lease_s": act["lease_s"], "holder": by})
        self._say(node.name, by, "fault.before", {"id": id, "held": id in self.held_before, "evidence": {}})
        if id in self.held_before:
            self._answer(command, "fail", {"reason": "the state to verify already held"}, writer=by)
            return
        if id not in self.hands_off:
            self._do(node, act["inject"])
        self._say(node.name, by, "fault.injected", {"id": id})
        if id in self.hands_off:
            self._answer(command, "fail", {"reason": "not verified"}, writer=by)
            return
        self._say(node.name, by, "fault.verified", {"id": id})
        self._answer(command, "ok", {"verified": True}, writer=by)

    def _healed(self, command: Command, node: FakeNode, by: str) -> None:
        id, gone = command.value["id"], by == "outside" and not self.host_of(node.name).reachable
        self._say(node.name, by, "fault.healed", {"id": id})
        if gone:
            self._answer(command, "fail", {"reason": "healing not verified"}, writer=by)
            return
        self._say(node.name, by, "heal.verified", {"id": id})
        self._answer(command, "ok", self._identity(node), writer=by)

    def _do(self, node: FakeNode, primitives: Sequence[Mapping[str, Any]]) -> None:
        for one in primitives:
            kind, of, state = one["kind"], one["args"].get("of", "node"), one["args"]["state"]
            do = self._TABLE.get((kind, of, state))
            if do is None:
                raise LookupError(f"a bed in memory has no {kind} of {of} {state}")
            do(self, node)

    def _stop_engine(self, node: FakeNode) -> None:
        """The containers end with their engine; the keeper is none and tells of it."""
        self.hosts[node.host].engine = False
        for one in self._on(node.host):
            self.kill(one.name)

    def _start_engine(self, node: FakeNode) -> None:
        self.hosts[node.host].engine = True

    def _pause(self, node: FakeNode) -> None:
        node.paused = node.alive

    def _resume(self, node: FakeNode) -> None:
        node.paused = False
        waiting, node.inbox = node.inbox, []
        for command in waiting:
            self._agent(command)

    def _start(self, node: FakeNode) -> bool:
        if not node.alive and self.hosts[node.host].engine:
            node.alive, node.ordinal = True, node.ordinal + 1
            node.incarnation = f"{node.name}-{node.ordinal}"
        return node.alive

    @staticmethod
    def _identity(node: FakeNode) -> dict[str, Any]:
        return {"incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.ordinal}

    _TABLE: Mapping[tuple[str, str, str], Callable[[FakeBed, FakeNode], object]] = {
        ("power", "node", "on"): _start,
        ("power", "node", "off"): lambda bed, node: bed.kill(node.name),
        ("pause", "node", "on"): _pause,
        ("pause", "node", "off"): _resume,
        ("power", "engine", "off"): _stop_engine,
        ("power", "engine", "on"): _start_engine,
        ("link", "host", "down"): lambda bed, node: bed.cut(node.host),
        ("link", "host", "up"): lambda bed, node: bed.join(node.host),
        ("power", "host", "off"): lambda bed, node: bed.power_off(node.host),
        ("power", "host", "on"): lambda bed, node: bed.power_on(node.host),
        ("power", "ssh", "off"): lambda bed, node: bed.ssh(node.host, on=False),
        ("power", "ssh", "on"): lambda bed, node: bed.ssh(node.host, on=True),
    }


def _holder(command: Command) -> str:
    """Who carries a command out: what takes a host away is acted and healed from outside."""
    act = command.value.get("act")
    return "outside" if act and codec.build(Act, act).outside else "keeper"
