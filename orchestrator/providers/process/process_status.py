"""The status of a bed of local processes, from labels, locks and /proc alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...model.bed import BedSpec, BedStatus, NodeState, NodeStatus
from ...node.files import label, plain_files
from ...node.keeper import lease_records
from ...node.oslayer import host_facts, process_tag, processes
from ...node.oslayer.processes import Process


def bed_status(bed: BedSpec, *, memory: bool = True) -> BedStatus:
    """The bed as it is now. ``memory``: measure it as well, which takes the kernel milliseconds per process."""
    workdir = Path(bed.workdir)
    keeper = label.live_label(workdir / label.KEEPER_DIR, label.KEEPER_LABEL)
    all_processes = processes.scan()
    wanted = [node.name for node in bed.nodes]
    statuses = [_node(bed, name, all_processes, memory=memory) for name in _names(workdir, wanted)]
    return BedStatus(
        name=bed.name,
        nodes=tuple(status for status in statuses if _is_listed(status, wanted)),
        keeper_pid=int(keeper.get("pid", 0)),
        keeper_hash=str(keeper.get("agent", "")),
        keeper_python=str(keeper.get("python", "")),
        leases=lease_records.describe_leases(workdir / label.KEEPER_DIR / "leases"),
        open_run=str(plain_files.read_json(workdir / "open-run.json").get("run", "")),
    )


def belonging(bed: BedSpec, all_processes: Iterable[Process]) -> list[Process]:
    """All processes of a bed, whether its keeper and agents live or not."""
    workdir = Path(bed.workdir)
    directories = [
        (workdir / label.KEEPER_DIR, label.KEEPER_LABEL),
        *((d, label.NODE_LABEL) for d in (workdir / "nodes").glob("*")),
    ]
    labels = [
        content for content in (plain_files.read_json(directory / name) for directory, name in directories) if content
    ]
    identities = [
        (content.get("pid"), content.get("start")) for content in labels if content.get("boot") == host_facts.boot_id()
    ]
    leaders = [(pid, start) for pid, start in identities if isinstance(pid, int) and isinstance(start, int)]
    return processes.select(
        all_processes, f"{process_tag.bed_tag(bed.name, bed.workdir)}/", processes.live_sessions(leaders)
    )


def _names(workdir: Path, wanted: list[str]) -> list[str]:
    present = sorted(path.name for path in (workdir / "nodes").glob("*"))
    return list(dict.fromkeys([*wanted, *present]))


def _is_listed(node: NodeStatus, wanted: list[str]) -> bool:
    """Whether to list a node: the spec has it, or a process of it is left."""
    return node.name in wanted or node.state not in ("dead", "absent") or bool(node.reason)


def _node(bed: BedSpec, name: str, all_processes: list[Process], *, memory: bool) -> NodeStatus:
    directory = Path(bed.workdir) / "nodes" / name
    content = label.live_label(directory)
    prefix = f"{process_tag.bed_tag(bed.name, bed.workdir)}/{name}/"
    if not content:
        return _dead_node(directory, name, processes.select(all_processes, prefix))
    own_processes = processes.select(all_processes, prefix, {int(content["pid"])})
    pages = [processes.resident_mib(process.pid) for process in own_processes] if memory else []
    return NodeStatus(
        name=name,
        state=_state(own_processes, label.count_reserves(directory, str(content["incarnation"]))),
        own_mib=round(sum(own for own, _ in pages), 1),
        shared_mib=round(max((shared for _, shared in pages), default=0.0), 1),
        **_identity(content),
    )


def _dead_node(directory: Path, name: str, left: list[Process]) -> NodeStatus:
    content = plain_files.read_json(directory / label.NODE_LABEL)
    reason = f"{len(left)} processes left without an agent" if left else ""
    if not content:
        return NodeStatus(name=name, state="dead" if left else "absent", reason=reason)
    return NodeStatus(name=name, state="dead", reason=reason, **_identity(content))


def _state(own_processes: list[Process], reserves: int) -> NodeState:
    if all(process.state == processes.STOPPED for process in own_processes):
        return "paused"
    return "busy" if len(own_processes) > 1 + reserves else "warm"


def _identity(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "spec_hash": str(content["spec_hash"]),
        "incarnation": str(content["incarnation"]),
        "ordinal": int(content["ordinal"]),
        "pid": int(content["pid"]),
        "python": str(content.get("python", "")),
        "torch": str(content.get("torch", "")),
    }
