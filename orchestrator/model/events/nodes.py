"""Life signs, exits and agents of nodes."""

from __future__ import annotations

from typing import Any

from ..payload import Payload, null, nullable, payload
from .units import Count, Seconds, Whole


@payload("node.suspect", writer="ctl")
class NodeSuspect(Payload):
    """The heart-beat of the node is late."""

    silent_s: Seconds | None = None


@payload("node.silent", writer="ctl")
class NodeSilent(Payload):
    """The heart-beat of the node is lost: a detector. ``seen``: the state of the node that an observation found then."""

    silent_s: Seconds | None = None
    seen: str | None = None


@payload("node.heard", writer="ctl")
class NodeHeard(Payload):
    """A suspect or silent node beats again."""

    silent_s: Seconds | None = None


@payload("node.exit", writer="keeper")
class NodeExit(Payload):
    """The agent of the node exited: a detector. ``code``: null where it is not known; ``left``: 0 where no process outlives it."""

    code: Whole | None = nullable()
    pid: Whole | None = null()
    left: Any = None


@payload("node.ended", writer="keeper")
class NodeEnded(Payload):
    """How the node ended: ``oom`` from the container's engine; of a process node ``killed`` and ``left``, its processes."""

    code: Whole | None = null()
    oom: bool | None = None
    pid: Whole | None = null()
    killed: tuple[Whole, ...] | None = None
    left: Count | None = None


@payload("agent.ready", writer="agent")
class AgentReady(Payload):
    """The agent takes commands. ``torch``: its version; ``frozen``: the objects that gc.freeze keeps."""

    pid: Whole | None = None
    threads: Count | None = None
    torch: str | None = null()
    frozen: Count | None = None
