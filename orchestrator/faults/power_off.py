"""Cuts the power of a node's host, and before that its link where that is possible; only silence detects it."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Lasting, Primitive, Safety, Target, lease_s
from ..model.frozen import dataclass

SAFETY: Safety = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(Lasting):
    """``for_s``: seconds until it is healed; None: when the run ends. ``back_s``: how long the host may take
    to answer after its power is on."""

    back_s: float = 300.0


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """``ccbed_power``, run on the controller; verified when the host's address does not answer.

    On Slurm it is the address of the node's slurmd, which sends no greeting: a connection shows that the host runs.
    """
    can_cut = "cut-link" in host.capabilities
    down, up = ((_link(host, "down"),), (_link(host, "up"),)) if can_cut else ((), ())
    return Act(
        inject=(*down, _power(host, "off")),
        verify=(_power(host, "off"),),
        heal=(*up, _power(host, "on")),
        verify_heal=(_power(host, "on"),),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("power-off",),
        disables=("agent", "host"),
        heal_after_s=params.for_s,
        limit_s=params.back_s,
    )


def _power(host: HostFacts, state: str) -> Primitive:
    run = host.spec.power.get(state, ()) if host.spec else ()
    greeting = {"greeting": ""} if host.provider == "slurm" else {}
    return Primitive(kind="power", args={"state": state, "of": "host", "run": list(run), **_endpoint(host), **greeting})


def _link(host: HostFacts, state: str) -> Primitive:
    run = host.spec.switch_port.get(state, ()) if host.spec else ()
    return Primitive(kind="link", args={"state": state, "of": "host", "run": list(run), **_endpoint(host)})


def _endpoint(host: HostFacts) -> dict[str, str | int]:
    return {"address": host.spec.address, "port": host.spec.port} if host.spec else {}
