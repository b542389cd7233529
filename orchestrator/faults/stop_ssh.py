"""Stops the sshd of a node's host: its ranks continue, but the controller cannot reach them; only silence detects it."""

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
