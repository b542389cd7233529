"""Cuts the link of a node's host: a partition, healed after a time or when the run ends; only silence detects it."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.act import Act, HostFacts, Primitive, Safety, Target, check_time, lease_s

SAFETY: Safety = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``for_s``: seconds until it is healed; None: when the run ends."""

    for_s: float | None = None

    def __post_init__(self) -> None:
        check_time(self.for_s)


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """``ccbed_switch_port``, on the orchestrator's machine; proved by the host's address: nobody answers there.

    Nothing on the host is harmed, its ranks go on waiting: what they do once the link is back must change nothing.
    """
    return Act(
        inject=(_link(host, "down"),),
        verify=(_link(host, "down"),),
        heal=(_link(host, "up"),),
        verify_heal=(_link(host, "up"),),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("cut-link",),
        disables=("host",),
        heal_after_s=params.for_s,
    )


def _link(host: HostFacts, state: str) -> Primitive:
    spec = host.spec
    run = spec.switch_port.get(state, ()) if spec else ()
    where = {"address": spec.address, "port": spec.port} if spec else {}
    return Primitive(kind="link", args={"state": state, "of": "host", "run": list(run), **where})
