"""Cuts the link of a node, or of its host: a partition, healed after a time or when the run ends."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s

SAFETY: Safety = "node"
#: The part of a cut's time in which it is proved.
PROOF = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``for_s``: seconds from the cut until it is healed; None: when the run ends."""

    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """On an emulated fabric the node's port of the switch, proved by the node's own interface: it has no link.

    Of a host ``ccbed_switch_port``, on the orchestrator's machine; proved by its address: nobody answers there, and only
    silence detects it. Nothing is harmed, ranks go on waiting: what they do once the link is back must change nothing.
    A short cut is proved while it lasts.
    """
    return Act(
        inject=(_link(host, "down"),),
        verify=(_link(host, "down", params.for_s),),
        heal=(_link(host, "up"),),
        verify_heal=(_link(host, "up"),),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("cut-link",),
        disables=() if _own(host) else ("host",),
        heal_after_s=params.for_s,
    )


def _own(host: HostFacts) -> bool:
    """Has the node a link of its own, beside what its host has?"""
    return host.spec is None and "own-link" in host.capabilities


def _link(host: HostFacts, state: str, for_s: float | None = None) -> Primitive:
    if _own(host):
        return Primitive(kind="link", args={"state": state})
    spec = host.spec
    run = spec.switch_port.get(state, ()) if spec else ()
    where = {"address": spec.address, "port": spec.port} if spec else {}
    within = {} if for_s is None else {"within_s": PROOF * for_s}
    return Primitive(kind="link", args={"state": state, "of": "host", "run": list(run), **where, **within})
