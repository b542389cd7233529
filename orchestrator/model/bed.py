"""Beds: hosts of an inventory, specs of hosts and nodes, their observed status, and the changes between them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal

from .frozen import dataclass, field

#: In the programs of ``ccbed_power`` it stands for the node's name in Slurm.
NODE_FIELD = "{node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of an Ansible inventory with its merged variables; ``position(s)`` of it and of them (``file:line: path``).

    ``has_become_password``: see ``HostSpec``.
    """

    name: str
    variables: Mapping[str, Any]
    position: str = ""
    positions: Mapping[str, str] = field(default_factory=dict)
    has_become_password: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The hosts of an inventory file."""

    path: str
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """The connection to a host: the controller itself, a host behind SSH, or a node of the bed's Slurm allocation.

    ``engine``: path of the container engine's socket there. ``ssh``: further options of ssh from the inventory, with names
    in lower case (``core/inventory/ssh_options.py``). ``power`` (off, on), ``switch_port`` (down, up) and ``ssh_control``
    (stop, start) are argv that the controller runs, not over SSH, to cut the host's power, its switch port, or its sshd;
    ``engine_control`` (stop, start) is argv that the host runs. ``has_become_password``: the inventory has the password with
    which Ansible becomes root there.
    """

    name: str
    connection: Literal["local", "ssh", "slurm"] = "local"
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
    has_become_password: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host of the bed, seen from outside: its name there, and a port of it that accepts connections while it runs.

    ``is_own``: it is the machine that runs ccbed, without which nothing would heal a fault.
    """

    name: str
    address: str
    port: int
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The container of a node, in addition to the properties of every node.

    ``gpu_devices``: indices, UUIDs, ``all``, or CDI names (``nvidia.com/gpu=0``). ``mounts``: ``source:target[:ro]``.
    ``no_proxy``: what is reached without a proxy, besides the bed's nodes. It is not in the variables of the node, with which
    ranks would lose the addresses of the nodes.
    """

    image: str
    cpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    mounts: tuple[str, ...] = ()
    user: str | None = None
    rdma: bool = False
    gpu_devices: tuple[str, ...] = ()
    no_proxy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """The shaping of an emulated fabric's links: of a node's link to its switch, in both directions.

    ``rate`` and ``uplink`` in bit/s, 0: not shaped; ``burst`` in bytes; ``delay_s``: one way, between any two nodes;
    ``loss``: fraction of lost packets. With ``groups`` the nodes are spread over that many leaf switches, in order; every
    leaf switch has an uplink to the core.
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
    """A node's port on the switch of an emulated fabric: its own network namespace, connected to leaf ``group``."""

    group: int = 0
    link: LinkSpec = field(default_factory=LinkSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSpec:
    """The Slurm job of a bed. ``nodes``: the number of its hosts, spares included.

    ``options``: long options of salloc and sbatch, without dashes, in the order of the inventory; the value of a flag is "".
    ``time_s``: the time limit in seconds; 0: the limit of the partition. ``container``: what runs the nodes of a host in a
    container of ``image``, a file; ``mounts``: ``source:target[:ro]``. ``ports``: the first and the last port on which ccbed
    listens for the nodes; empty: any.
    """

    nodes: int
    options: Mapping[str, str] = field(default_factory=dict)
    time_s: int = 0
    container: Literal["none", "pyxis", "apptainer"] = "none"
    image: str = ""
    mounts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


#: A replacement is started only in place of a lost node (policy ``replace``).
Role = Literal["node", "spare", "replacement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The spec of a node. ``hash`` covers every field whose change requires a replacement of the node.

    If ``address`` (or ``interface``) is empty, it is determined on the host (``NodeStatus``). ``gpus``: a number; -1: all
    GPUs of the host. ``port``: set if a process node has its own network namespace. ``python``: the interpreter of agent and
    ranks; empty: that of the orchestrator, or ``python3`` of the image. ``has_reserves``: its agent keeps reserve ranks; a
    change takes effect at the next start of the node.
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
    python: str = ""
    has_reserves: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedHost:
    """A host that was brought up and left the inventory. ``nodes``: the names of its nodes."""

    host: HostSpec
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BedSpec:
    """The desired state of a bed: the content of the bed file.

    ``workdir``: the bed's directory on the controller; ``hostdir``: on its hosts and in its containers; they are the same
    if the controller is the only host. ``network``: nodes use the network of their host (host), or a network of their own
    on the controller (private). ``link``: the shaping of a private network (of different hosts the
    highest rate). ``vault``: values from a vault, which no message, bundle or bed file shows (``model/vaulted.py``).
    ``departed``: hosts that left the inventory and have not been cleaned up. ``replacements``: nodes for which hosts have room, and
    that `up` does not start. ``start_timeout_s``: the time in which a node
    must become warm. ``slurm``: the job whose nodes are the hosts (provider slurm).
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
    slurm: SlurmSpec | None = None
    replacements: tuple[NodeSpec, ...] = ()

    @property
    def all_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes, and those that may be started in place of lost ones."""
        return (*self.nodes, *self.replacements)

    @property
    def fabric(self) -> bool:
        """Return whether the nodes are processes in their own network namespaces, connected by the bed's emulated switches."""
        return any(node.port for node in self.nodes)

    @property
    def shares_file_system(self) -> bool:
        """Return whether every node sees the files of the controller under their own paths."""
        return self.provider == "process" and all(host.connection == "local" for host in self.hosts)

    def directory_on(self, host: str) -> str:
        """The bed's directory on a host. The nodes of a Slurm job may be one machine, or share the file system."""
        return f"{self.hostdir}/{host}" if self.provider == "slurm" else self.hostdir or self.workdir

    def host(self, name: str) -> HostSpec:
        return next(host for host in self.hosts if host.name == name)

    def node(self, name: str) -> NodeSpec:
        return next(node for node in self.all_nodes if node.name == name)


#: unreachable: its host does not respond, so the node's state is unknown.
NodeState = Literal["warm", "busy", "starting", "dead", "paused", "absent", "unreachable"]


def mac_address(address: str) -> str:
    """The hardware address that belongs to an IPv4 address: the peers of a restarted node know it already."""
    return "02:cc:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The observed status of a node. Memory in MiB; ``warm``: torch is imported and nothing runs.

    ``host``: the host on which it was observed. On a host other than that of its spec its name is ``n1@h2``.
    ``python`` and ``torch``: the versions in which its ranks run; empty if not known. ``changed``: how the create request of its
    container differs from the one that the inventory asks for now.
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
    python: str = ""
    torch: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """The parts of a bed of containers on a host. ``keeper_pid``: 0 if no keeper is alive; ``engine``: its version.

    ``stamp``: the fingerprint of its preparation; empty if it has none, or has the stamp of another machine.
    ``directory_id``: identifies the bed's directory and its machine independently of the connection; empty if absent.
    ``containers``: the number of containers, including ended ones. ``unit``: its keeper is a unit of systemd, of the system or
    of the user, which starts it again after a reboot; ``unit_problem``: why it is none. ``keeper_loss``: why it is gone, if known.
    ``interfaces``: the addresses of each.
    """

    name: str
    keeper_pid: int = 0
    engine: str = ""
    stamp: str = ""
    directory_id: str = ""
    containers: int = 0
    unit: Literal["", "system", "user"] = ""
    unit_problem: str = ""
    keeper_loss: str = ""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BedStatus:
    """The observed status of a bed. ``detached``: its nodes outlive their keeper, and a new keeper adopts them.

    ``keeper_python``: the interpreter that the keeper was started for, as ``NodeSpec.python``. ``keeper_loss``: why a keeper is
    gone, if known. ``job``: the Slurm job that
    holds the nodes, in words for people; empty without one.
    """

    name: str
    nodes: tuple[NodeStatus, ...] = ()
    keeper_pid: int = 0
    keeper_hash: str = ""
    keeper_python: str = ""
    keeper_loss: str = ""
    leases: tuple[str, ...] = ()
    open_run: str = ""
    detached: bool = False
    hosts: tuple[HostStatus, ...] = ()
    job: str = ""

    def node(self, name: str) -> NodeStatus:
        matches = (node for node in self.nodes if node.name == name)
        return next(matches, NodeStatus(name=name, state="absent"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A line in the plan of `up`: the action on a node, and the reason. ``host``: set for a node that shall not be there."""

    action: Literal["create", "replace", "remove", "keep"]
    node: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The plan of `up`: --dry-run prints it, and apply executes it. ``detached``: see ``BedStatus``.

    ``departed``: changes on hosts that left the inventory; nodes on unreachable hosts are kept. ``settings``: what changes without
    a change of nodes, in words.
    """

    changes: tuple[Change, ...]
    keeper: Change | None = None
    detached: bool = False
    departed: tuple[Change, ...] = ()
    settings: str = ""

    @property
    def empty(self) -> bool:
        return self.keeper is None and all(change.action == "keep" for change in (*self.changes, *self.departed))

    def of(self, action: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action == action)
