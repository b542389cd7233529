"""The holder on the orchestrator's machine: a keeper without nodes, for faults that take a host away, its own keeper included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..oslayer.processes import Process
from .primitives import Unsupported

#: The name under which it writes and holds leases, and of its directory in the bed's.
OUTSIDE = "outside"
NOT_HERE = "a node is not in reach from outside of its host"


@dataclass(kw_only=True)
class Place:
    """A node as it is seen from outside: a name. Nothing in it can be touched, only what it lives in."""

    name: str
    directory: Path = Path("/nonexistent")
    pid: int = 0
    label: dict[str, Any] = field(default_factory=dict)

    def processes(self) -> list[Process]:
        return []

    def is_up(self) -> bool:
        """A host can be taken away whatever runs on it."""
        return True

    def power_on(self) -> None:
        """Its own keeper does that, once its host is back."""
        raise Unsupported(NOT_HERE)

    def power_off(self) -> dict[str, Any]:
        raise Unsupported(NOT_HERE)

    def pause(self, on: bool) -> dict[str, Any]:
        raise Unsupported(NOT_HERE)

    def is_paused(self, on: bool) -> tuple[bool | None, dict[str, Any]]:
        raise Unsupported(NOT_HERE)

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        raise Unsupported(NOT_HERE)

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> tuple[bool | None, dict[str, Any]]:
        raise Unsupported(NOT_HERE)

    def has_link(self) -> bool:
        return False

    def link(self, on: bool) -> dict[str, Any]:
        raise Unsupported(NOT_HERE)

    def is_linked(self, on: bool) -> tuple[bool, dict[str, Any]]:
        raise Unsupported(NOT_HERE)

    def agent(self) -> Process | None:
        return None

    def rank(self, number: int) -> Process | None:
        return None


class Places:
    """Every node that a command names."""

    def __init__(self, *ground: object) -> None:
        """Needs nothing of what others stand on."""

    def get(self, name: str) -> Place:
        """Raises ValueError for what cannot be a name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        return Place(name=name)

    def adopt(self) -> None:
        """There is nothing to take over but leases."""

    def reap(self) -> None:
        """Programs are waited for by those who started them."""

    def end(self, node: Place, *rest: object) -> None:
        raise Unsupported(NOT_HERE)

    start = end
