"""What a fault is to those who carry it out: a list of primitives from a closed set, with its rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PrimitiveKind = Literal["signal", "argv", "write_file", "power", "link", "pause"]
Safety = Literal["process", "container", "node", "cluster"]
SAFETY_ORDER: tuple[Safety, ...] = ("process", "container", "node", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One elementary operation, or, in a ``verify`` list, the state that it must find.

    power   {"state": "off" | "on"}        off: SIGKILL to every process of the node; on: the node is started again
    pause   {"state": "on" | "off"}        SIGSTOP / SIGCONT to every process of the node
    signal  {"signal": "TERM", "rank": 1}  a signal to one rank
    argv, write_file, link                 for providers that have them
    """

    kind: PrimitiveKind
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The node that a fault is aimed at, once resolved."""

    node: str
    rank: int | None
    role: str = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a fault may ask of the target's host: the provider's kind and its capabilities (kill, pause, stop, power-off …)."""

    name: str
    provider: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An injection with its proof and its rollback; pure data.

    ``disables``: what the fault takes away (``agent``: the node's agent cannot hold the lease, its keeper does).
    ``heal_after_s``: healed on purpose after that time; None: when the run ends.
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
