"""Compare a bed's spec with its status: the changes that `ccbed up` makes, with a reason per node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.bed import BedSpec, BedStatus, Change, Diff, NodeSpec, NodeStatus
from . import links

_ALIVE = ("warm", "busy", "starting")
AS_WANTED = "as wanted"
#: The new keeper observes the node's exit, but not its exit code: only the keeper that forked a node receives that.
ADOPTED = "as wanted; its host agent is gone, a new one adopts it"


#: Field of the bed or of a host -> its variable, where that has another name. What is not listed here is no setting.
_SETTINGS = {
    **{name: f"ccbed_{name}" for name in ("shared_dir", "data_dir", "allow_faults", "engine_control", "power", "ssh_control")},
    **dict.fromkeys(("address", "port", "user", "key", "python", "ssh"), "connection"), "replacements": "ccbed_max_nodes",
    "switch_port": "ccbed_switch_port", "known_hosts": "ccbed_known_hosts", "first_contact": "ccbed_ssh_first_contact",
    "slurm": "ccbed_ports", "start_timeout_s": "ccbed_start_timeout",
}  # fmt: skip


def describe_settings(before: BedSpec, bed: BedSpec) -> str:
    """Return what changes in place, and what has no effect on nodes that run; empty if neither changes. No value: it may be secret."""
    pairs = [(before, bed), *((old, new) for old in before.hosts for new in bed.hosts if old.name == new.name)]
    changed = {
        _SETTINGS[name] for name in _SETTINGS for old, new in pairs
        if getattr(old, name, None) != getattr(new, name, None)
    }  # fmt: skip
    later = changed & {_SETTINGS["start_timeout_s"]}
    groups = {"changed in place": changed - later, "no effect on running nodes": later}
    return "; ".join(f"{text}: {', '.join(sorted(names))}" for text, names in groups.items() if names)


def diff(bed: BedSpec, status: BedStatus, earlier: BedSpec | None = None) -> Diff:
    """``earlier``: the bed as it was last brought up; with it the reason of a replacement names the changed fields."""
    keeper = _keeper(bed, status)
    nodes_keeper = None if status.detached else keeper
    changes = tuple(_change(node, status.node(node.name), nodes_keeper, earlier) for node in bed.nodes)
    names = {node.name for node in bed.nodes}
    used = {node.name for node in bed.replacements} if status.open_run else set()
    extra = (node for node in status.nodes if node.name not in names | used and node.state != "absent")
    removed = tuple(Change(action="remove", node=node.name, host=node.host, reason=_unwanted(node)) for node in extra)
    settings = describe_settings(earlier or bed, bed)
    return Diff(changes=(*changes, *removed), keeper=keeper, detached=status.detached, settings=settings)


def _unwanted(node: NodeStatus) -> str:
    return "the node of this name is on another host" if "@" in node.name else "no longer wanted"


def _keeper(bed: BedSpec, status: BedStatus) -> Change | None:
    if not status.keeper_pid:
        return Change(action="create", node="keeper", reason="not there")
    if status.keeper_hash != bed.agent:
        reason = f"agent changed {status.keeper_hash[:6] or 'unknown'} -> {bed.agent[:6]}"
        return Change(action="replace", node="keeper", reason=reason)
    python = next((node.python for node in bed.nodes if not node.container), status.keeper_python)
    if status.keeper_python != python:
        reason = f"python {status.keeper_python or 'default'} -> {python or 'default'}"
        return Change(action="replace", node="keeper", reason=reason)
    return None


def _change(spec: NodeSpec, observed: NodeStatus, keeper: Change | None, earlier: BedSpec | None) -> Change:
    if observed.state == "absent":
        return Change(action="create", node=spec.name, reason=observed.reason or "not there")
    if observed.state == "unreachable":
        return Change(
            action="replace", node=spec.name, reason="its host cannot be reached: the node's state is unknown"
        )
    if observed.state == "dead":
        return Change(action="create", node=spec.name, reason=observed.reason or "dead")
    if keeper is not None and keeper.action == "replace":
        return Change(action="replace", node=spec.name, reason=keeper.reason)
    if observed.changed:
        return Change(action="replace", node=spec.name, reason="\n".join(observed.changed))
    if observed.spec_hash != spec.hash:
        return Change(action="replace", node=spec.name, reason=_describe_change(spec, observed, earlier))
    if observed.state not in _ALIVE:
        return Change(action="replace", node=spec.name, reason=observed.reason or observed.state)
    return Change(action="keep", node=spec.name, reason=ADOPTED if keeper else AS_WANTED)


def _describe_change(spec: NodeSpec, observed: NodeStatus, earlier: BedSpec | None) -> str:
    old = next((node for node in earlier.nodes if node.name == spec.name), None) if earlier else None
    old_fields, new_fields = (_fields(old), _fields(spec)) if old else ({}, {})
    changed = [name for name in new_fields if old_fields[name] != new_fields[name]]
    hashes = f"spec {observed.spec_hash[:6] or 'unknown'} -> {spec.hash[:6]}"
    if not old or not changed:
        return hashes
    listed = (
        _changed_variables(old_fields[name], new_fields[name])
        if name == "env"
        else f"{name} {old_fields[name] or 'default'} -> {new_fields[name] or 'default'}"
        for name in changed
    )
    return f"{', '.join(listed)} ({hashes})"


def _changed_variables(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Names without values: any value of an environment may be secret."""
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    return f"env {' '.join(changed)} changed"


def _fields(node: NodeSpec) -> dict[str, Any]:
    """The fields of a node that may change, in the form that a reason shows."""
    names = ("host", "role", "address", "interface", "gpus", "env", "python")
    fields = {name: getattr(node, name) for name in names}
    link, group = (links.text(node.port.link), node.port.group) if node.port else ("none", 0)
    return {**fields, "link": link, "group": group}
