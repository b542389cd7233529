"""Kills every process of a node at once; its own link, where it has one, is cut first, as in a power cut."""

from __future__ import annotations

from ..model.act import LEASE_S, Act, HostFacts, Primitive, Safety, Target
from ..model.plugin import NoParams as Params

SAFETY: Safety = "container"

#: Healing starts the node anew: an interpreter that imports torch took 5 s on an idle machine, beside the job's own ranks.
LIMIT_S = 60.0


def plan(params: Params, target: Target, host: HostFacts) -> Act:
    """Power off, verified when no process is left; healed by power on. The agent dies too, so the keeper holds the lease.

    The keeper verifies that the node's own link is down before it kills the processes: afterwards there is no link to observe.
    """
    has_own_link = "own-link" in host.capabilities
    down = (Primitive(kind="link", args={"state": "down"}),) if has_own_link else ()
    up = (Primitive(kind="link", args={"state": "up"}),) if has_own_link else ()
    off = Primitive(kind="power", args={"state": "off"})
    on = Primitive(kind="power", args={"state": "on"})
    return Act(
        inject=(*down, off),
        verify=(*down, off),
        heal=(*up, on),
        verify_heal=(*up, on),
        lease_s=LEASE_S,
        safety=SAFETY,
        needs=("kill",),
        disables=("agent",),
        limit_s=LIMIT_S,
    )
