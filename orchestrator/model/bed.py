"""Hosts as the user wrote them, the nodes that are wanted, and the nodes that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of an Ansible inventory with its merged variables, and the place of it and of each (``file:line: path``)."""

    name: str
    variables: Mapping[str, Any]
    place: str = ""
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The hosts as the user wrote them."""

    path: str
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What one node shall be. ``hash`` covers everything that a change of which needs the node replaced."""

    name: str
    host: str
    role: Literal["node", "spare"]
    address: str
    hash: str
    interface: str = "lo"
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BedSpec:
    """What the user wants to exist: the bed file's content."""

    name: str
    provider: str
    nodes: tuple[NodeSpec, ...]
    inventory: str
    workdir: str
    shared_dir: str
    agent: str
    data_dir: str | None = None
    allow_faults: Literal["process", "container", "node", "cluster"] = "container"
    hash: str = ""

    def node(self, name: str) -> NodeSpec:
        return next(node for node in self.nodes if node.name == name)


NodeState = Literal["warm", "busy", "starting", "dead", "paused", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What one node is found to be. Memory in MiB; ``warm``: torch is imported and nothing runs."""

    name: str
    state: NodeState
    spec_hash: str = ""
    incarnation: str = ""
    ordinal: int = 0
    pid: int = 0
    own_mib: float = 0.0
    shared_mib: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BedStatus:
    """What exists of a bed."""

    name: str
    nodes: tuple[NodeStatus, ...] = ()
    keeper_pid: int = 0
    keeper_hash: str = ""
    leases: tuple[str, ...] = ()
    open_run: str = ""

    def node(self, name: str) -> NodeStatus:
        found = (node for node in self.nodes if node.name == name)
        return next(found, NodeStatus(name=name, state="absent"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a plan of `up`: what is to be done to a node, and why."""

    action: Literal["create", "replace", "remove", "keep"]
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The plan of `up`: a value that --dry-run prints and apply walks."""

    changes: tuple[Change, ...]
    keeper: Change | None = None

    @property
    def empty(self) -> bool:
        return self.keeper is None and all(change.action == "keep" for change in self.changes)

    def of(self, action: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action == action)
