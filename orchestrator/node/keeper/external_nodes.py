"""Nodes of the external keeper, which runs on the controller for faults that take a host away together with its own keeper."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NoReturn

from ...model.frozen import dataclass, field
from ..oslayer.processes import Process
from .node_protocol import Unsupported

OUT_OF_REACH = "the external keeper cannot act on a node, only on its host"


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


class ExternalNodes:
    """Every node that a command names. Same methods as ``ProcessLifecycle``."""

    def __init__(self, *unused: object) -> None:
        """The arguments of ``ProcessLifecycle`` are accepted and ignored."""
        self._sessions: dict[tuple[str, int], socket.socket] = {}

    def get(self, name: str) -> ExternalNode:
        """Raises ValueError for an invalid name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        return ExternalNode(name=name, sessions=self._sessions)

    def adopt(self) -> None:
        """Only leases need a takeover."""

    def reap(self) -> None:
        """Programs are reaped by the code that started them."""

    def end(self, node: ExternalNode, *rest: object) -> None:
        raise Unsupported(OUT_OF_REACH)

    start = end
