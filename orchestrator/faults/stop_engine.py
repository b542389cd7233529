"""Stops the container engine of a node's host, and with it the containers that end with it; node.exit detects it."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Lasting, Primitive, Safety, Target, lease_s

SAFETY: Safety = "node"

#: Stopping an engine ends its containers one after the other.
LIMIT_S = 60.0

Params = Lasting


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """``ccbed_engine_control``, run on the host; verified when the engine's socket does not answer.

    It is healed when the socket answers and the node is up. The host's keeper is no container and survives, so it acts and
    holds the lease.
    """
    return Act(
        inject=(_engine(host, "off"),),
        verify=(_engine(host, "off"),),
        heal=(_engine(host, "on"), Primitive(kind="power", args={"state": "on"})),
        verify_heal=(_engine(host, "on"), Primitive(kind="power", args={"state": "on"})),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("stop-engine",),
        disables=("agent", "engine"),
        heal_after_s=params.for_s,
        limit_s=LIMIT_S,
    )


def _engine(host: HostFacts, state: str) -> Primitive:
    control = host.spec.engine_control if host.spec else {}
    run = control.get("stop" if state == "off" else "start", ())
    socket = host.spec.engine if host.spec else ""
    return Primitive(kind="power", args={"state": state, "of": "engine", "run": list(run), "socket": socket})
