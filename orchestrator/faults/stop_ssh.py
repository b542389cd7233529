"""Stops the sshd of a node's host: its ranks continue, but the controller cannot reach them; only silence detects it."""

from __future__ import annotations

from ..model.act import Act, HostFacts, Lasting, Primitive, Safety, Target, lease_s

SAFETY: Safety = "node"

Params = Lasting


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """``ccbed_ssh_control``, run on the controller, by another way than SSH; verified by the host's SSH port."""
    return Act(
        inject=(_sshd(host, "off"),),
        verify=(_sshd(host, "off"),),
        heal=(_sshd(host, "on"),),
        verify_heal=(_sshd(host, "on"),),
        lease_s=lease_s(params.for_s),
        safety=SAFETY,
        needs=("stop-ssh",),
        disables=("agent", "ssh"),
        heal_after_s=params.for_s,
    )


def _sshd(host: HostFacts, state: str) -> Primitive:
    spec = host.spec
    run = spec.ssh_control.get("stop" if state == "off" else "start", ()) if spec else ()
    endpoint = {"address": spec.address, "port": spec.port} if spec else {}
    return Primitive(kind="power", args={"state": state, "of": "ssh", "run": list(run), **endpoint})
