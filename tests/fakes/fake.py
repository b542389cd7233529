"""A bed in memory with a virtual clock: agents respond, ranks step, nodes die, and no real time passes.

For simulations: the orchestrator may be killed and built again around the same FakeBed, which lives on. Latencies come
from a seeded generator, so that a seed is one interleaving; with ``doubled`` some events are delivered twice, and
commands that reached a host in the last ``unacknowledged_s`` before it was lost are sent again when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.model import codec, events
from orchestrator.model.act import Primitive
from orchestrator.model.bed import BedSpec, BedStatus, HostSpec, Machine, NodeStatus
from orchestrator.model.event import Clock, Command, Event
from orchestrator.model.events import KEEPER_COMMANDS
from orchestrator.model.payload import Payload
from orchestrator.model.provider import Cursors, Fetched
from orchestrator.node.files.payloads import payload_hash

from .fake_agents import FakeAgents
from .fake_cluster import BOOT_S, OUTSIDE, FakeCluster, FakeHost, FakeNode
from .fake_ranks import FakeGang, FakeRanks


class FakeBed:
    """See the module, and model.provider.Provider. Its parts are public, so that a test can replace what one of them does."""

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
        self.cluster = FakeCluster(names, seed=seed, doubled=doubled, hosts=hosts or {})
        self.cluster.unacknowledged_s = unacknowledged_s
        self.ranks = FakeRanks(self.cluster, steps=steps, every=every)
        self.agents = FakeAgents(self.cluster, self.ranks)
        self.keepers = FakeKeepers(self.cluster, self.agents)
        self.payloads: dict[str, Mapping[str, bytes]] = {}
        self.runs: list[str] = []

    @property
    def nodes(self) -> Mapping[str, FakeNode]:
        return self.cluster.nodes

    @property
    def hosts(self) -> Mapping[str, FakeHost]:
        return self.cluster.hosts

    @property
    def gangs(self) -> Mapping[int, FakeGang]:
        return self.ranks.gangs

    @property
    def received(self) -> Sequence[Event]:
        """All events that the controller could have read so far."""
        return self.cluster.received

    @property
    def time(self) -> float:
        return self.cluster.time

    def now(self) -> Clock:
        return self.cluster.now()

    def at(self, after_s: float, work: Callable[[], None]) -> None:
        """Run ``work`` later, e.g. ``lambda: bed.kill("n1")``."""
        self.cluster.later(after_s, work)

    def kill(self, name: str) -> None:
        """End a node unplanned; its keeper reports the exit."""
        self.cluster.kill(name)

    def status(self, name: str) -> NodeStatus:
        node = self.nodes[name]
        if not self.hosts[node.host].answers:
            return NodeStatus(name=name, state="unreachable", reason=f"host {node.host} does not answer")
        state = "dead" if not node.alive else "paused" if node.paused else "warm"
        return NodeStatus(name=name, state=state, incarnation=node.incarnation, ordinal=node.ordinal, pid=node.ordinal)  # type: ignore[arg-type]

    # --- model.provider.Provider ------------------------------------------------------------------------------------------

    def warm_up(self, bed: BedSpec) -> None:
        """Nothing of it takes long."""

    def capabilities(self, host: str) -> frozenset[str]:
        return frozenset({"kill", "pause"})

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        return {}

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        return BedStatus(name="fake", nodes=tuple(self.status(name) for name in self.nodes))

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        return self.status(node)

    def prober(self, bed: BedSpec) -> None:
        return None

    def prepare(self, bed: BedSpec) -> None: ...

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        living = [node for node in self.nodes.values() if node.alive]
        for node in living:
            self.cluster.kill(node.name)
        self.payloads, self.runs = {}, []
        return tuple(node.ordinal for node in living)

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        return ()

    def record_acts(self, bed: BedSpec, lines: Mapping[str, str]) -> None:
        """Its hosts have no record."""

    def sign(self, bed: BedSpec, digest: str) -> Mapping[str, str]:
        return {}

    def open(self, bed: BedSpec, run: str) -> Cursors:
        self.runs.append(run)
        return {"received": len(self.received)}

    def close(self) -> None: ...

    def put(self, files: Mapping[str, bytes]) -> str:
        name = payload_hash(files)
        self.payloads[name] = files
        return f"/payloads/{name}"

    def perform(self, command: Command) -> None:
        receive = self.keepers.receive if command.kind in KEEPER_COMMANDS else self.agents.receive
        outside = holder(command) == OUTSIDE
        self.cluster.later(
            self.cluster.latency(),
            lambda: receive(command) if outside else self.cluster.deliver(command, receive),
        )

    def require_performer(self, command: Command) -> None: ...

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Moves the virtual clock to the next event, or by ``timeout_s``."""
        start, end = cursors.get("received", 0), self.time + timeout_s
        while len(self.received) == start and self.cluster.agenda.step(end):
            pass
        if len(self.received) == start:
            self.cluster.agenda.time = end
        return tuple(self.received[start:]), {"received": len(self.received)}

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        """The heart-beats that the controller received last."""
        return {
            node.name: (node.incarnation, node.beats) if self.hosts[node.host].answers else node.shown
            for node in self.nodes.values()
            if self.hosts[node.host].answers or node.shown[0]
        }

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        content = self.nodes[node].files.get(path)
        if content is None:
            return Fetched(path=path, size=0, reason="not there")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content[:limit])
        return Fetched(path=path, size=min(limit, len(content)), capped=(".",) * (limit < len(content)))

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        results: list[Fetched] = []
        for path, to in wanted:
            results.append(self.fetch(node, path, to, max(0, limit - sum(result.size for result in results))))
        return results

    def forget(self, bed: BedSpec, run: str, *, is_gathered: bool = False) -> None:
        self.runs = [name for name in self.runs if name != run or is_gathered]

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        names = [*(("payload", name) for name in self.payloads), *(("run", run) for run in self.runs if run != "bed")]
        return [("", {"kind": kind, "name": name, "size_bytes": 0, "age_s": 0.0}) for kind, name in names]

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        for _, kind, name in entries:
            if kind == "payload":
                self.payloads.pop(name, None)
            else:
                self.forget(bed, name)


# --- the keepers of a bed in memory: one on each host, and the lease holder on the controller's machine, which never ends ---


class FakeKeepers:
    """See the module. ``disarmed``: ids of faults whose injection does nothing.

    ``held_before``: ids of faults whose state to verify holds before the injection.
    """

    def __init__(self, cluster: FakeCluster, agents: FakeAgents) -> None:
        self._cluster = cluster
        self.disarmed: set[str] = set()
        self.held_before: set[str] = set()
        #: What is done for a primitive, by its kind, of what, and the state.
        self._primitives: Mapping[tuple[str, str, str], Callable[[FakeNode], object]] = {
            ("power", "node", "on"): cluster.start,
            ("power", "node", "off"): lambda node: cluster.kill(node.name),
            ("pause", "node", "on"): self._pause,
            ("pause", "node", "off"): agents.resume,
            ("power", "engine", "off"): lambda node: cluster.stop_engine(node.host),
            ("power", "engine", "on"): lambda node: cluster.start_engine(node.host),
            ("link", "host", "down"): lambda node: cluster.cut(node.host),
            ("link", "host", "up"): lambda node: cluster.join(node.host),
            ("power", "host", "off"): lambda node: cluster.power_off(node.host),
            ("power", "host", "on"): lambda node: cluster.power_on(node.host),
            ("power", "ssh", "off"): lambda node: cluster.set_ssh(node.host, on=False),
            ("power", "ssh", "on"): lambda node: cluster.set_ssh(node.host, on=True),
        }

    def receive(self, command: Command) -> None:
        writer, node = holder(command), self._cluster.nodes[str(command.node)]
        if self._cluster.is_repeated(command, writer):
            return
        if command.kind in (events.NodeKill, events.FaultAct) and command.incarnation not in (None, node.incarnation):
            self._cluster.respond(command, "fail", {"reason": "another incarnation"}, writer=writer)
            return
        node.done[command.key] += 1
        if command.kind is events.NodeKill:
            self._cluster.kill(node.name)
            self._cluster.respond(command, "ok", {**_identity(node), "left": 0}, writer=writer)
        elif command.kind is events.NodeApply:
            alive = self._cluster.start(node)
            reason = {} if alive else {"reason": "the engine does not answer"}
            self._cluster.respond(command, "ok" if alive else "fail", {**_identity(node), **reason}, writer=writer)
        elif command.kind is events.FaultAct:
            self.inject(command, node, writer)
        else:
            self._heal(command, node, writer)

    def inject(self, command: Command[events.FaultAct], node: FakeNode, writer: str) -> None:
        id, act = command.data.id or "", command.data.act
        assert act is not None, "the engine orders an act"
        self._note(node, writer, events.LeaseArmed(key=command.key, lease_s=act.lease_s, holder=writer))
        self._note(node, writer, events.FaultBefore(id=id, held=id in self.held_before, evidence={}))
        if id in self.held_before:
            self._cluster.respond(command, "fail", {"reason": "the state to verify already held"}, writer=writer)
            return
        if id not in self.disarmed:
            self.perform(node, act.inject)
        self._note(node, writer, events.FaultInjected(id=id, evidence=None))
        if id in self.disarmed:
            self._cluster.respond(command, "fail", {"reason": "not verified"}, writer=writer)
            return
        self._note(node, writer, events.FaultVerified(id=id, evidence=None))
        self._cluster.respond(command, "ok", {"verified": True}, writer=writer)

    def perform(self, node: FakeNode, primitives: Sequence[Primitive]) -> None:
        for primitive in primitives:
            kind, of, state = primitive.kind, primitive.args.get("of", "node"), primitive.args["state"]
            work = self._primitives.get((kind, of, state))
            if work is None:
                raise LookupError(f"a bed in memory has no {kind} of {of} {state}")
            work(node)

    def _heal(self, command: Command[events.FaultHeal], node: FakeNode, writer: str) -> None:
        primitives = command.data.act.heal if command.data.act is not None else ()
        self.perform(node, primitives)
        boots = any(primitive.args.get("of") == "host" and primitive.kind == "power" for primitive in primitives)
        self._cluster.later(2 * BOOT_S if boots else 0.0, lambda: self._healed(command, node, writer))

    def _healed(self, command: Command[events.FaultHeal], node: FakeNode, writer: str) -> None:
        id, lost = command.data.id or "", writer == OUTSIDE and not self._cluster.host_of(node.name).reachable
        self._note(node, writer, events.FaultHealed(id=id, evidence=None))
        if lost:
            self._cluster.respond(command, "fail", {"reason": "healing not verified"}, writer=writer)
            return
        self._note(node, writer, events.HealVerified(id=id, evidence=None))
        self._cluster.respond(command, "ok", _identity(node), writer=writer)

    def _note(self, node: FakeNode, writer: str, payload: Payload) -> None:
        self._cluster.emit(node.name, writer, payload.NAME, codec.plain(payload))

    @staticmethod
    def _pause(node: FakeNode) -> None:
        node.paused = node.alive


def holder(command: Command) -> str:
    """Who performs a command: a fault that takes its host away is injected and healed from outside."""
    act = getattr(command.data, "act", None)
    return OUTSIDE if act is not None and act.outside else "keeper"


def _identity(node: FakeNode) -> dict[str, Any]:
    return {"incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.ordinal}
