"""What is wanted and what exists -> what `up` must do, with a reason for each node."""

from __future__ import annotations

from typing import Any

from ...model.bed import BedSpec, BedStatus, Change, Diff, NodeSpec, NodeStatus
from . import links

_ALIVE = ("warm", "busy", "starting")
AS_WANTED = "as wanted"
#: Its exit will be seen, its exit code will not: only the keeper that forked a node is told that.
ADOPTED = "as wanted; its keeper is gone, a new one adopts it"


def diff(bed: BedSpec, status: BedStatus, before: BedSpec | None = None) -> Diff:
    """``before``: the bed as it was last asked for; with it the reason of a replacement names what changed."""
    keeper = _keeper(bed, status)
    theirs = None if status.detached else keeper
    wanted = tuple(_change(node, status.node(node.name), theirs, before) for node in bed.nodes)
    names = {node.name for node in bed.nodes}
    gone = (node for node in status.nodes if node.name not in names and node.state != "absent")
    removed = tuple(Change(action="remove", node=node.name, host=node.host, reason=_unwanted(node)) for node in gone)
    return Diff(changes=(*wanted, *removed), keeper=keeper, detached=status.detached)


def _unwanted(node: NodeStatus) -> str:
    return "the node of this name is on another host" if "@" in node.name else "no longer wanted"


def _keeper(bed: BedSpec, status: BedStatus) -> Change | None:
    if not status.keeper_pid:
        return Change(action="create", node="keeper", reason="not there")
    if status.keeper_hash != bed.agent:
        reason = f"agent changed {status.keeper_hash[:6] or 'unknown'} -> {bed.agent[:6]}"
        return Change(action="replace", node="keeper", reason=reason)
    return None


def _change(wanted: NodeSpec, found: NodeStatus, keeper: Change | None, before: BedSpec | None) -> Change:
    if found.state == "absent":
        return Change(action="create", node=wanted.name, reason=found.reason or "not there")
    if found.state == "unreachable":
        return Change(action="replace", node=wanted.name, reason="its host is not reached: nobody knows")
    if found.state == "dead":
        return Change(action="create", node=wanted.name, reason=found.reason or "dead")
    if keeper is not None and keeper.action == "replace":
        return Change(action="replace", node=wanted.name, reason=keeper.reason)
    if found.spec_hash != wanted.hash:
        return Change(action="replace", node=wanted.name, reason=_changed(wanted, found, before))
    if found.state not in _ALIVE:
        return Change(action="replace", node=wanted.name, reason=found.reason or found.state)
    return Change(action="keep", node=wanted.name, reason=ADOPTED if keeper else AS_WANTED)


def _changed(wanted: NodeSpec, found: NodeStatus, before: BedSpec | None) -> str:
    old = next((node for node in before.nodes if node.name == wanted.name), None) if before else None
    then, now = (_told(old), _told(wanted)) if old else ({}, {})
    fields = [name for name in now if then[name] != now[name]]
    hashes = f"spec {found.spec_hash[:6] or 'unknown'} -> {wanted.hash[:6]}"
    if not old or not fields:
        return hashes
    listed = (
        _variables(then[name], now[name]) if name == "env" else f"{name} {then[name]} -> {now[name]}" for name in fields
    )
    return f"{', '.join(listed)} ({hashes})"


def _variables(then: Any, now: Any) -> str:
    """Of an environment only names are shown: any of its values may be a secret."""
    changed = sorted(name for name in {**then, **now} if then.get(name) != now.get(name))
    return f"env {' '.join(changed)} changed"


def _told(node: NodeSpec) -> dict[str, Any]:
    """What of a node may have changed, as a reason says it."""
    names = ("host", "role", "address", "interface", "gpus", "env", "container")
    told = {name: getattr(node, name) for name in names}
    link, group = (links.text(node.port.link), node.port.group) if node.port else ("none", 0)
    return {**told, "link": link, "group": group}
