"""The status of a bed of processes on this host: from the labels and locks of its nodes, and /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...system import host_facts, plain_files
from ..files import label
from ..oslayer import processes
from ..oslayer.processes import Process
from . import keeper_start, lease_records

END_S = 10.0


def bed_status(hostdir: str, bed: str, memory: bool = False) -> dict[str, Any]:
    return {**host_status(hostdir), "owners": [], "nodes": list_nodes(Path(hostdir), bed, memory=memory)}


def host_status(hostdir: str) -> dict[str, Any]:
    """Return what a bed has on this host beside its nodes."""
    directory = Path(hostdir) / label.KEEPER_DIR
    keeper = {**plain_files.read_json(directory / label.KEEPER_LABEL), "loss": keeper_start.explain_loss(directory)}
    return {
        "keeper": {**keeper, "alive": bool(label.live_label(directory, label.KEEPER_LABEL))},
        "leases": list(lease_records.describe_leases(directory / "leases")),
        "interfaces": host_facts.interfaces(),
        "machine": host_facts.machine_id(),
        "place": host_facts.directory_identity(hostdir),
    }


def list_nodes(workdir: Path, bed: str, *, memory: bool) -> list[dict[str, Any]]:
    """The status of each node that has a directory, as the fields of a NodeStatus."""
    index = processes.ProcessIndex(processes.scan())
    names = sorted(path.name for path in (workdir / "nodes").glob("*"))
    return [_node(workdir, bed, name, index, memory=memory) for name in names]


def end_bed(workdir: Path, bed: str) -> list[int]:
    """End the keeper first, so that it starts nothing anew; then all other processes, until none is left; their pids.

    Raises RuntimeError if processes do not end.
    """
    keeper = label.lock_holder(workdir / label.KEEPER_DIR)
    ended: set[int] = set()
    until = time.monotonic() + END_S
    while left := belonging(workdir, bed, processes.scan()):
        if time.monotonic() > until:
            raise RuntimeError(f"processes {', '.join(str(process.pid) for process in left)} do not end")
        ended.update(processes.kill(sorted(left, key=lambda process: process.pid != keeper)))
        time.sleep(0.002)
    return sorted(ended)


def belonging(workdir: Path, bed: str, all_processes: Iterable[Process]) -> list[Process]:
    """All processes of a bed, whether its keeper and agents live or not."""
    directories = [
        (workdir / label.KEEPER_DIR, label.KEEPER_LABEL),
        *((directory, label.NODE_LABEL) for directory in (workdir / "nodes").glob("*")),
    ]
    labels = [
        content for content in (plain_files.read_json(directory / name) for directory, name in directories) if content
    ]
    identities = [
        (content.get("pid"), content.get("start")) for content in labels if content.get("boot") == host_facts.boot_id()
    ]
    leaders = [(pid, start) for pid, start in identities if isinstance(pid, int) and isinstance(start, int)]
    return processes.select(all_processes, f"{processes.bed_tag(bed, str(workdir))}/", processes.live_sessions(leaders))


def _node(workdir: Path, bed: str, name: str, index: processes.ProcessIndex, *, memory: bool) -> dict[str, Any]:
    directory = workdir / "nodes" / name
    content = label.live_label(directory)
    prefix = f"{processes.bed_tag(bed, str(workdir))}/{name}/"
    if not content:
        return _dead_node(directory, name, index.select(prefix))
    own_processes = index.select(prefix, {int(content["pid"])})
    pages = [processes.resident_mib(process.pid) for process in own_processes] if memory else []
    return {
        **_identity(name, content),
        "state": _state(own_processes, label.count_reserves(directory, str(content["incarnation"]))),
        "own_mib": round(sum(own for own, _ in pages), 1),
        "shared_mib": round(max((shared for _, shared in pages), default=0.0), 1),
    }


def _dead_node(directory: Path, name: str, left: list[Process]) -> dict[str, Any]:
    content = plain_files.read_json(directory / label.NODE_LABEL)
    reason = f"{len(left)} processes left without an agent" if left else ""
    return {**_identity(name, content), "state": "dead" if left or content else "absent", "reason": reason}


def dead_node(name: str, reason: str) -> dict[str, Any]:
    """The status of a node of which nothing but its end is known."""
    return {**_identity(name, {}), "state": "dead", "reason": reason}


def _state(own_processes: list[Process], reserves: int) -> str:
    if all(process.state == processes.STOPPED for process in own_processes):
        return "paused"
    return "busy" if len(own_processes) > 1 + reserves else "warm"


def _identity(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the label of a node says about it; nothing is known of a node without a label."""
    return {
        "name": name,
        "reason": "",
        "address": "",
        "own_mib": 0.0,
        "shared_mib": 0.0,
        "spec_hash": str(content.get("spec_hash", "")),
        "incarnation": str(content.get("incarnation", "")),
        "ordinal": int(content.get("ordinal", 0)),
        "pid": int(content.get("pid", 0)),
        "python": str(content.get("python", "")),
        "torch": str(content.get("torch", "")),
    }
