"""The status of a bed of local processes, from labels, locks and /proc alone."""

from __future__ import annotations

from pathlib import Path

from ...model.bed import BedSpec, BedStatus, NodeStatus
from ...node.files import label, plain_files
from ...node.keeper import lease_records, process_status


def bed_status(bed: BedSpec, *, memory: bool = True) -> BedStatus:
    """The bed as it is now. ``memory``: measure it as well, which takes the kernel milliseconds per process."""
    workdir = Path(bed.workdir)
    keeper = label.live_label(workdir / label.KEEPER_DIR, label.KEEPER_LABEL)
    wanted = [node.name for node in bed.nodes]
    observed = {row["name"]: NodeStatus(**row) for row in process_status.list_nodes(workdir, bed.name, memory=memory)}
    names = dict.fromkeys([*wanted, *observed])
    statuses = [observed.get(name) or NodeStatus(name=name, state="absent") for name in names]
    return BedStatus(
        name=bed.name,
        nodes=tuple(status for status in statuses if _is_listed(status, wanted)),
        keeper_pid=int(keeper.get("pid", 0)),
        keeper_hash=str(keeper.get("agent", "")),
        keeper_python=str(keeper.get("python", "")),
        leases=lease_records.describe_leases(workdir / label.KEEPER_DIR / "leases"),
        open_run=str(plain_files.read_json(workdir / "open-run.json").get("run", "")),
    )


def _is_listed(node: NodeStatus, wanted: list[str]) -> bool:
    """Whether to list a node: the spec has it, or a process of it is left."""
    return node.name in wanted or node.state not in ("dead", "absent") or bool(node.reason)
