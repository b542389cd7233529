"""A provider in memory for tests of the command line: nodes come up at once, and it records its commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.model.bed import BedSpec, BedStatus, HostSpec, Machine, NodeState, NodeStatus
from orchestrator.model.event import Clock, Command, Event, Source
from orchestrator.model.provider import Cursors, Fetched


@dataclass(kw_only=True)
class FakeProvider:
    """``broken``: nodes that do not come up. ``commands``: as ``f node``."""

    broken: tuple[str, ...] = ()
    commands: list[str] = field(default_factory=list)
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    keeper: str = ""
    left: list[dict[str, Any]] = field(default_factory=list)
    acts: dict[str, str] = field(default_factory=dict)
    machine_of: dict[str, str] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)

    def state(self, name: str, state: NodeState) -> None:
        self.nodes[name] = replace(self.nodes[name], state=state)

    def warm_up(self, bed: BedSpec) -> None:
        """Nothing of it takes long."""

    def capabilities(self, host: str) -> frozenset[str]:
        return frozenset({"kill", "pause"})

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        return {host: Machine(name=name, address=name, port=6818) for host, name in self.machine_of.items()}

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        pid = 99 if self.keeper else 0
        return BedStatus(name=bed.name, nodes=tuple(self.nodes.values()), keeper_pid=pid, keeper_hash=self.keeper)

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        return self.observe(bed).node(node)

    def prober(self, bed: BedSpec) -> None:
        return None

    def prepare(self, bed: BedSpec) -> None:
        self.keeper = bed.agent

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        self.commands.append("retire")
        ended = tuple(node.pid for node in self.nodes.values())
        self.nodes, self.keeper = {}, ""
        return ended

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        names = {host.name for host in hosts}
        self.commands.append(f"clear {' '.join(sorted(names))}")
        gone = [node for node in self.nodes.values() if node.host in names]
        for node in gone:
            del self.nodes[node.name]
        return tuple(node.pid for node in gone)

    def record_acts(self, bed: BedSpec, lines: Mapping[str, str]) -> None:
        self.acts |= lines

    def sign(self, bed: BedSpec, digest: str) -> Mapping[str, str]:
        return {}

    def open(self, bed: BedSpec, run: str) -> Cursors:
        return {}

    def close(self) -> None: ...

    def put(self, files: Mapping[str, bytes]) -> str:
        return "/payload"

    def require_performer(self, command: Command) -> None: ...

    def perform(self, command: Command) -> None:
        name = str(command.node)
        self.commands.append(f"{command.f} {name}")
        good = name not in self.broken
        if command.f == "node.apply" and good:
            spec = str(command.value["hash"])
            self.nodes[name] = NodeStatus(name=name, state="warm", spec_hash=spec, incarnation="i1", ordinal=1, pid=7)
        if command.f == "node.kill":
            del self.nodes[name]
        value = {} if good else {"reason": "no memory left"}
        source = Source(writer="keeper", n=len(self.commands))
        at = Clock(boot="b", mono=0.0, wall=0.0)
        kind = "ok" if good else "fail"
        self._events.append(
            Event(type=kind, f=command.f, at=at, source=source, key=command.key, node=name, value=value)  # type: ignore[arg-type]
        )

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        message, self._events = self._events, []
        return message, cursors

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return {}

    def forget(self, bed: BedSpec, run: str, *, is_gathered: bool = False) -> None:
        self.commands.append(f"forget {'what was gathered of ' if is_gathered else ''}{run}")

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return [("", entry) for entry in self.left]

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        self.commands += [f"remove {kind} {name}" for _, kind, name in entries]

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        return Fetched(path=path, size=0, reason="nothing there")

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return [self.fetch(node, path, to, limit) for path, to in wanted]
