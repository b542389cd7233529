"""The protocol of a node under faults: what the primitives of faults need; the state of nodes that a keeper starts; and external nodes.

The external keeper runs on the controller for faults that take a host away together with its own keeper.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ...model.events.commands import CommandFailed
from ...model.frozen import dataclass, field
from ...model.payload import Payload
from ...system import plain_files
from ..files.inbox import Respond
from ..oslayer.processes import Process

#: Does a state hold (None: not known yet), and the evidence.
Observed = tuple[bool | None, dict[str, Any]]
#: Called with (killed pids, number of processes that are left).
OnEnd = Callable[[list[int], int], None]
N = TypeVar("N")


class Unsupported(Exception):
    """A primitive that cannot be applied to this node."""


class Node(Protocol):
    """One node, whether it lives or not: a process group, a container, or a name on another host."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path: ...

    @property
    def pid(self) -> int:
        """The pid of its first process on the host; 0 before its first start."""

    def processes(self) -> list[Process]:
        """All its living processes, the agent included; read anew on each call."""

    def is_up(self) -> bool:
        """Does its agent take commands?"""

    def power_on(self) -> None:
        """Start it unless it runs or starts already."""

    def power_off(self) -> dict[str, Any]:
        """Kill all its processes at once; what was done."""

    def pause(self, on: bool) -> dict[str, Any]:
        """Stop all its processes, or (not ``on``) continue them; what was done."""

    def is_paused(self, on: bool) -> Observed:
        """Are all its processes stopped, or (not ``on``) is none stopped by that?"""

    def send_signal(self, targets: Sequence[Process], number: int) -> list[int]:
        """Send a signal to some of its processes; the pids that received it. While the node is paused it continues none."""

    def is_stopped(self, process: Process) -> bool:
        """Is it stopped by a signal of its own, not only together with the whole node?"""

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """Limit all its processes (``cpu_percent``, ``memory_mib``, ``pids``), or lift these limits; what was done."""

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> Observed:
        """Do these limits hold for all its processes, or (not ``on``) for none?"""

    def has_link(self) -> bool:
        """Does it have a link that it shares with no other node?"""

    def link(self, on: bool) -> dict[str, Any]:
        """Set its link up or down; what was done. Raises Unsupported if it has none."""

    def is_linked(self, on: bool) -> Observed:
        """Is its link up, or (not ``on``) down?"""

    def slow_link(self, slowdown: Mapping[str, Any] | None) -> dict[str, Any]:
        """Lower the rate of its link (``direction``, ``percent`` or ``rate_bit``, ``peer``); None: restore it. What was done."""

    def is_link_slow(self, slowdown: Mapping[str, Any] | None) -> Observed:
        """Does the kernel show this rate, or (None) the link's own?"""

    def agent(self) -> Process | None:
        """The living process of its agent."""

    def rank(self, number: int) -> Process | None:
        """The living process of a rank."""


class StartedNode(ABC):
    """The base of the nodes that a keeper starts on its host. ``label``: of the newest incarnation, also when that has ended.

    ``start``: starts a new incarnation.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        label: dict[str, Any],
        ready_s: float,
        start: Callable[[Any, Mapping[str, Any], Respond], None],
    ) -> None:
        self.name = name
        self.directory = directory
        self.label = label
        self.alive = False
        self.ready = False
        self.starting = False
        self.waiting: list[Respond] = []
        #: How long a start may take, in seconds.
        self.ready_s = ready_s
        self.pidfd = -1
        self._start = start

    @property
    @abstractmethod
    def wanted(self) -> dict[str, Any]:
        """Return what the newest incarnation was started with."""

    @property
    def identity(self) -> dict[str, Any]:
        return {field: self.label.get(field) for field in ("incarnation", "ordinal", "pid")}

    @property
    def pid(self) -> int:
        """The pid of its first process in the host's pid namespace: its agent, or the main process of its container."""
        return int(self.label.get("pid", 0))

    def is_up(self) -> bool:
        return self.alive and self.ready

    def power_on(self) -> None:
        if not self.alive and not self.starting:
            self._start(self, self.wanted, lambda kind, payload: None)

    def log_tail(self) -> str:
        return plain_files.tail_text(self.directory / "agent.log", 2000)

    def fail_start(self, reason: str, log: str | None = None) -> None:
        self.respond_to_start("fail", CommandFailed(reason=reason, log=log))

    def respond_to_start(self, kind: str, payload: Payload) -> None:
        waiting, self.waiting, self.starting = self.waiting, [], False
        for respond in waiting:
            respond(kind, payload)


class NodeLifecycle(ABC, Generic[N]):
    """The nodes of a keeper by name, of one kind: how they start, end, and are taken over from an earlier keeper."""

    def __init__(self) -> None:
        self._nodes: dict[str, N] = {}

    def get(self, name: str) -> N:
        """A node by name; created if unknown. Raises ValueError for an invalid name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        if name not in self._nodes:
            self._nodes[name] = self.make(name)
        return self._nodes[name]

    @abstractmethod
    def make(self, name: str) -> N: ...

    def adopt(self) -> None:
        """Take over the nodes of an earlier keeper: watch the living, report the exits that it did not report."""

    def reap(self) -> None:
        """Notice what has ended, or is ready, since the last call."""

    @abstractmethod
    def start(self, node: N, wanted: Mapping[str, Any], respond: Respond) -> None:
        """End what is left of the earlier incarnation, then start a new one; respond with its identity when it is ready."""

    @abstractmethod
    def end(self, node: N, then: OnEnd) -> None:
        """Kill every process of a node; then call with the killed pids and the number of processes that are left."""


OUT_OF_REACH = "the external host agent cannot act on a node, only on its host"


@dataclass(kw_only=True)
class ExternalNode:
    """A node as the external keeper knows it: by name. Only its host can be acted on. ``sessions``: see ``host_primitives``."""

    name: str
    directory: Path = Path("/nonexistent")
    pid: int = 0
    label: dict[str, Any] = field(default_factory=dict)
    sessions: dict[tuple[str, int], socket.socket] = field(default_factory=dict)

    def processes(self) -> list[Process]:
        return []

    def is_up(self) -> bool:
        """Always: a host can be taken away whatever runs on it."""
        return True

    def has_link(self) -> bool:
        return False

    def _refuse(self, *unused: object, **named: object) -> NoReturn:
        """Its own keeper acts on it, once the host is back."""
        raise Unsupported(OUT_OF_REACH)

    power_on = power_off = pause = is_paused = send_signal = is_stopped = limit = is_limited = _refuse
    link = is_linked = slow_link = is_link_slow = _refuse

    def agent(self) -> Process | None:
        return None

    def rank(self, number: int) -> Process | None:
        return None


class ExternalNodes(NodeLifecycle[ExternalNode]):
    """Every node that a command names. Only leases need a takeover."""

    def __init__(self, *unused: object) -> None:
        """The arguments of ``ProcessLifecycle`` are accepted and ignored."""
        super().__init__()
        self._sessions: dict[tuple[str, int], socket.socket] = {}

    def make(self, name: str) -> ExternalNode:
        return ExternalNode(name=name, sessions=self._sessions)

    def start(self, node: ExternalNode, *rest: object) -> None:
        raise Unsupported(OUT_OF_REACH)

    def end(self, node: ExternalNode, *rest: object) -> None:
        raise Unsupported(OUT_OF_REACH)
