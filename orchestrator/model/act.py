"""Acts: a fault as lists of primitives from a closed set, with verification and healing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from .bed import HostSpec
from .frozen import dataclass, field

PrimitiveKind = Literal["signal", "argv", "file", "limit", "link", "pause", "power", "inside"]
Safety = Literal["process", "container", "node", "cluster"]
SAFETY_ORDER: tuple[Safety, ...] = ("process", "container", "node", "cluster")
#: Signals that end a process: there is nothing to heal afterwards.
ENDING_SIGNALS = ("KILL", "TERM", "INT", "QUIT", "ABRT", "SEGV")
#: Parts of a host that an act may disable; without its SSH or the host itself, no process there can be ordered to heal.
OF_HOSTS = ("engine", "host", "ssh")
BEYOND_REACH = ("host", "ssh")
#: The lease of a fault that lasts until the run ends, and the margin after which the holder of a lease heals others.
LEASE_S = 120.0
MARGIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One elementary operation, or, in a ``verify`` list, the state that it must find.

    power   {"state": "off" | "on"}        off: SIGKILL to every process of the node; on: the node is started again
    pause   {"state": "on" | "off"}        SIGSTOP / SIGCONT to every process of the node
    signal  {"signal": "TERM", "rank": 1}  a signal to one rank; with "local_rank", to the rank of that place on the node, or
            to "all" of them; with "process": "agent", to the node's agent. With "grace_s": the next part waits until
            the processes have ended, at most that long
    inside  {"do": "flip", "local_rank": 0, ...}    the watcher inside of a rank does it; its answer is the proof
    link    {"state": "down" | "up"}       the node's own link, where it has one (``own-link``)
    link    {"state": "slow" | "full", "direction": "out" | "in" | "both", "percent": 50}    the rate of that link, in percent of
            its own, or "rate_bit" in bit/s. With "peer": only of the traffic with that node
    limit   {"state": "on" | "off", "cpu_percent": 20}    limits the whole node: "cpu_percent" of one CPU, "memory_mib", "pids"
    file    {"state": "present" | "absent", "path": "x"}  a file below the node's directory. With "text" or "size_mib" it is
            the fault's own, created and removed; else it is the node's, moved out of the way and back
    argv    {"run": [program, argument]}   runs a program on the node's host, or, with "network": true, in the node's own
            network (tc, nft). As a proof: it exits with code 0, its output has the text "contains" and not the text "lacks"

    With ``of`` it acts on what contains the node, and ``run`` is the argv that reaches the state:

    power   {"state": "off" | "on", "of": "host" | "ssh", "run": [...], "address": "198.18.0.2", "port": 22}
    link    {"state": "down" | "up", "of": "host", "run": [...], "address": "198.18.0.2", "port": 22}
    power   {"state": "off" | "on", "of": "engine", "run": [...], "socket": "/var/run/docker.sock"}

    Their proof is an observation of its own: whether that address, or that socket, answers. A host answers with a line that
    begins with ``greeting``, by default that of sshd; where it is empty, a connection is enough. ``within_s``: a fault that does
    not last is proved in this time.
    """

    kind: PrimitiveKind
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The resolved target node of a fault."""

    node: str
    rank: int | None
    role: str = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The target's host: its provider and its capabilities (kill, pause, stop, power-off …).

    ``spec``: its connection, and the argv that control it; None if the bed has no hosts of its own.
    """

    name: str
    provider: str
    capabilities: frozenset[str]
    spec: HostSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An injection with its verification and healing.

    ``verify`` is observed before the injection too: a state that already held proves nothing. A part of it that is also a
    part of ``inject`` is observed before the next part of ``inject`` follows, which may hide it.

    ``disables``: what the fault takes away (``agent``: the node's agent cannot hold the lease, its keeper does; ``engine``,
    ``host``, ``ssh``: that of the whole host). ``heal_after_s``: healed on purpose after that time,
    which counts from the injection; None: when the run ends.
    ``limit_s``: how long the injection with its proof, and the healing with its own, may take each.
    """

    inject: tuple[Primitive, ...]
    verify: tuple[Primitive, ...]
    heal: tuple[Primitive, ...]
    verify_heal: tuple[Primitive, ...]
    lease_s: float
    safety: Safety
    needs: tuple[str, ...] = ()
    disables: tuple[str, ...] = ()
    heal_after_s: float | None = None
    limit_s: float = 20.0

    @property
    def of_host(self) -> bool:
        """Return whether the act affects every node of the target's host."""
        return any(fault in OF_HOSTS for fault in self.disables)

    @property
    def of_ranks(self) -> bool:
        """Return whether it reaches ranks alone: no node exits or falls silent by it."""
        return all(
            item.kind == "inside" or (item.kind == "signal" and "process" not in item.args) for item in self.inject
        )

    @property
    def ends_no_node(self) -> bool:
        """Return whether the processes of the node live on: it may fall silent by this act, but does not exit."""
        slowing = {"state", "cpu_percent"}
        return all(
            item.kind == "pause"
            or (item.kind == "limit" and item.args.keys() <= slowing)
            or (item.kind == "link" and item.args.get("state") == "slow")
            for item in self.inject
        )

    @property
    def outside(self) -> bool:
        """Return whether it is acted, and its lease held, on the orchestrator's machine: the host's own keeper is out of reach."""
        return any(fault in BEYOND_REACH for fault in self.disables)


def objection(act: Act) -> str:
    """Return why an act cannot be verified; empty if it can."""
    if not act.inject:
        return "inject is empty"
    if not act.verify:
        return "verify is empty: nothing would prove the fault"
    if act.inject == act.heal:
        return "inject equals `heal`: the fault would change nothing"
    if act.verify == act.verify_heal:
        return "verify equals verify_heal: the same state cannot prove the fault and its undoing"
    return ""


def lease_s(for_s: float | None) -> float:
    """The lease of a fault that is healed after ``for_s``, or when the run ends."""
    return LEASE_S if for_s is None else for_s + MARGIN_S


def check_time(for_s: float | None) -> None:
    """Raises ValueError for an invalid time."""
    if for_s is not None and not (math.isfinite(for_s) and for_s > 0):
        raise ValueError(f"for_s: must be > 0 (got {for_s:g})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """``for_s``: seconds until it is healed; None: when the run ends."""

    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)
