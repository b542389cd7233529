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
class HostSpec:
    """A host as it is reached: this machine, or one behind SSH.

    ``engine``: path of the container engine's socket there. ``ssh``: what the inventory hands to ssh beside that, by the
    names of its options in lower case (``core/ssh_options.py``). ``power`` (off, on), ``switch_port`` (down, up) and
    ``ssh_control`` (stop, start) are argv that this machine runs to cut the host's power, its switch port, or its sshd by
    another way than SSH; ``engine_control`` (stop, start) is argv for the host itself.
    """

    name: str
    connection: Literal["local", "ssh"] = "local"
    address: str = ""
    port: int = 22
    user: str = ""
    key: str | None = None
    python: str = "python3"
    engine: str = "/var/run/docker.sock"
    known_hosts: str | None = None
    first_contact: bool = False
    ssh: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    power: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    switch_port: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engine_control: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ssh_control: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What the container of a node shall be, beyond what every node is.

    ``gpu_devices``: indices, UUIDs, ``all``, or CDI names (``nvidia.com/gpu=0``). ``mounts``: ``source:target[:ro]``.
    """

    image: str
    cpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    mounts: tuple[str, ...] = ()
    user: str | None = None
    rdma: bool = False
    gpu_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """How the links of an emulated fabric are shaped: each node's to its switch, in both directions.

    ``rate`` and ``uplink`` in bit/s, 0: not shaped; ``burst`` in bytes; ``delay_s``: one way, between any two nodes;
    ``loss``: the part of the packets that is lost on the way. With ``groups`` the nodes are spread over as many leaf
    switches, in order, each behind an uplink to the core.
    """

    rate: int = 0
    burst: int = 0
    delay_s: float = 0.0
    loss: float = 0.0
    groups: int = 1
    uplink: int = 0
    uplink_burst: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSpec:
    """A node's place on the switch of an emulated fabric: its own network namespace, plugged into leaf ``group``."""

    group: int = 0
    link: LinkSpec = field(default_factory=LinkSpec)


Role = Literal["node", "spare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What one node shall be. ``hash`` covers everything that a change of which needs the node replaced.

    Where it is only found on the host, ``address`` (or ``interface``) is empty and the found one counts (``NodeStatus``).
    ``gpus``: how many; -1: as many as the host has. ``port``: where a process node has a network namespace of its own.
    """

    name: str
    host: str
    role: Role
    address: str
    hash: str
    interface: str = "lo"
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    container: ContainerSpec | None = None
    port: PortSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedHost:
    """A host that was brought up and left the inventory. ``nodes``: the names that it had."""

    host: HostSpec
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BedSpec:
    """What the user wants to exist: the bed file's content.

    ``workdir`` is the bed's directory on this machine; ``hostdir`` the one on its hosts, and inside of its containers.
    They are the same where the only host is this machine. ``network``: nodes share their host's (host), or have one of
    their own on this machine (private). ``link``: how that one is shaped, where it is. ``vault``: the values of the inventory
    that came out of a vault; no message, no bundle and no bed file shows them (``model/vaulted.py``). ``departed``: hosts
    that left the inventory and were not found empty since. ``start_timeout_s``: how long a node may take to become warm.
    """

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
    hosts: tuple[HostSpec, ...] = ()
    hostdir: str = ""
    network: Literal["", "host", "private"] = ""
    link: LinkSpec | None = None
    vault: tuple[str, ...] = field(default=(), repr=False)
    departed: tuple[DepartedHost, ...] = ()
    start_timeout_s: float = 60.0

    @property
    def fabric(self) -> bool:
        """Whether it is an emulated fabric: each node a process in its own network namespace, on a switch of this bed."""
        return any(node.port for node in self.nodes)

    def host(self, name: str) -> HostSpec:
        return next(host for host in self.hosts if host.name == name)

    def node(self, name: str) -> NodeSpec:
        return next(node for node in self.nodes if node.name == name)


#: unreachable: its host does not answer, so nobody knows.
NodeState = Literal["warm", "busy", "starting", "dead", "paused", "absent", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What one node is found to be. Memory in MiB; ``warm``: torch is imported and nothing runs.

    ``host``: where it was found, if hosts are asked for it. On a host where it is not wanted its name is ``n1@h2``.
    """

    name: str
    state: NodeState
    spec_hash: str = ""
    incarnation: str = ""
    ordinal: int = 0
    pid: int = 0
    own_mib: float = 0.0
    shared_mib: float = 0.0
    reason: str = ""
    address: str = ""
    interface: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """What a host has of a bed of containers. ``keeper_pid``: 0 where none lives; ``engine``: its version.

    ``stamp``: what it says that it was prepared for; empty where it does not, or where another machine said so.
    ``place``: which directory of which machine the bed's is, by whatever way it was reached; empty where there is none.
    ``containers``: how many there are, ended ones as well.
    """

    name: str
    keeper_pid: int = 0
    engine: str = ""
    stamp: str = ""
    place: str = ""
    containers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BedStatus:
    """What exists of a bed. ``detached``: its nodes outlive their keeper, so that a new one takes them over."""

    name: str
    nodes: tuple[NodeStatus, ...] = ()
    keeper_pid: int = 0
    keeper_hash: str = ""
    leases: tuple[str, ...] = ()
    open_run: str = ""
    detached: bool = False
    hosts: tuple[HostStatus, ...] = ()

    def node(self, name: str) -> NodeStatus:
        found = (node for node in self.nodes if node.name == name)
        return next(found, NodeStatus(name=name, state="absent"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a plan of `up`: what is to be done to a node, and why. ``host``: of a node that is not wanted there."""

    action: Literal["create", "replace", "remove", "keep"]
    node: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The plan of `up`: a value that --dry-run prints and apply walks. ``detached``: see ``BedStatus``.

    ``departed``: what is on hosts that left the inventory; it is kept where they are not reached.
    """

    changes: tuple[Change, ...]
    keeper: Change | None = None
    detached: bool = False
    departed: tuple[Change, ...] = ()

    @property
    def empty(self) -> bool:
        return self.keeper is None and all(change.action == "keep" for change in (*self.changes, *self.departed))

    def of(self, action: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action == action)
