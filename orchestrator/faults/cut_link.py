"""Cuts the link of a node, or of its host: a partition, undone after a time or when the run ends."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Lasting, Primitive, Safety, Target, lease_s
from ..model.frozen import dataclass

SAFETY: Safety = "node"
#: A cut that does not last is verified within this part of its time.
VERIFY_SHARE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(Lasting):
    """``for_s``: seconds from the cut until it is healed; None: when the run ends."""


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """Cut the link of a node. On an emulated fabric: the node's port of the switch, verified by the node's own interface.

    On a host: ``ccbed_switch_port``, run on the controller, verified when the host's address does not answer; only silence
    detects it. The ranks keep waiting, and their work after the healing must change nothing. A short cut is verified while
    it lasts.
    """
    return Act(
        inject=(_link(host, "down"),),
        verify=(_link(host, "down", params.for_s),),
        heal=(_link(host, "up"),),
        verify_heal=(_link(host, "up"),),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("cut-link",),
        disables=() if _has_own_link(host) else ("host",),
        heal_after_s=params.for_s,
    )


def _has_own_link(host: HostFacts) -> bool:
    return host.spec is None and "own-link" in host.capabilities


def _link(host: HostFacts, state: str, for_s: float | None = None) -> Primitive:
    if _has_own_link(host):
        return Primitive(kind="link", args={"state": state})
    spec = host.spec
    run = spec.switch_port.get(state, ()) if spec else ()
    endpoint = {"address": spec.address, "port": spec.port} if spec else {}
    within = {} if for_s is None else {"within_s": VERIFY_SHARE * for_s}
    return Primitive(kind="link", args={"state": state, "of": "host", "run": list(run), **endpoint, **within})
