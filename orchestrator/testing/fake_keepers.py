"""The keepers of a bed in memory: one on each host, and the lease holder on the controller's machine, which never ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..model import codec, events
from ..model.act import Primitive
from ..model.event import Command
from ..model.payload import Payload
from .fake_agents import FakeAgents
from .fake_cluster import BOOT_S, OUTSIDE, FakeCluster, FakeNode


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
