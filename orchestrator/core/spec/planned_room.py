"""The nodes that may take the place of a lost one on another host (policy ``replace``), and why a host gets none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...model.bed import BedSpec, BedStatus, NodeSpec
from ...model.frozen import dataclass, field
from ...model.plan import Gap, Placement
from ...model.trial import REPLACE, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``nodes``: unused ones that are warm, then those that can be started; ``hosts``: every host -> why it gets none, or empty."""

    nodes: tuple[NodeSpec, ...] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)


def plan_room(
    trial: Trial,
    bed: BedSpec,
    status: BedStatus,
    placement: Placement,
    members: Sequence[NodeSpec],
    gaps: Iterable[Gap],
    refused: Mapping[str, str],
    backend: str,
) -> Room:
    """``members``: the nodes of the slots and the spares. ``refused``: host -> why no replacement can be started there."""
    if REPLACE not in trial.recovery.policy:
        return Room()
    used = {node.name for node in members}
    unused = [node for node in bed.nodes if node.role == "node" and node.name not in used]
    warm = [node for node in unused if status.node(node.name).state == "warm" and node.name not in placement.excluded]
    unfit = {**_unfit_hosts(bed, status, placement), **refused}
    names, gaps = frozenset(node.name for node in members), tuple(gaps)
    free: list[NodeSpec] = []
    hosts = dict.fromkeys((node.host for node in bed.all_nodes), "")
    reasons: dict[str, str] = {}
    for node in (*warm, *bed.replacements):
        reason = unfit.get(node.host) or _unfit_node(trial, bed, status, node, names, gaps, backend)
        reasons.setdefault(node.host, reason)
        if not reason:
            free.append(node)
    usable = {node.host for node in free}
    return Room(nodes=tuple(free), hosts={host: "" if host in usable else reasons.get(host, "") for host in hosts})


def missing_room(trial: Trial, bed: BedSpec, room: Room) -> str:
    """The problem if nothing but room helps, and there is none and none is waited for; else empty."""
    if trial.recovery.policy != (REPLACE,) or room.nodes or trial.recovery.replace_wait_s:
        return ""
    listed = "; ".join(f"{host} {reason or 'is full'}" for host, reason in room.hosts.items())
    fix = "raise ccbed_max_nodes, wait for room (--replace-wait 5m), or --recovery restart"
    return f"recovery replace needs a host with room; bed {bed.name} has none: {listed}: {fix}"


def address(bed: BedSpec, status: BedStatus, node: NodeSpec) -> tuple[str, str]:
    """(address, interface) of a node that may not live yet: as its host's other nodes were observed, which share its network."""
    observed = [status.node(other.name) for other in (node, *bed.nodes) if other.host == node.host]
    known = next((status for status in observed if status.address), None)
    return (known.address, known.interface) if known else ("", "")


def _unfit_hosts(bed: BedSpec, status: BedStatus, placement: Placement) -> Mapping[str, str]:
    """Hosts that get no replacement during this run -> the reason. A drain may end, so it is no such reason where it can."""
    unfit: dict[str, str] = {}
    hosts = {host.name: host for host in status.hosts}
    reached = {host.name for host in bed.hosts}
    for node in bed.all_nodes:
        if bed.hosts and node.host not in reached:
            unfit[node.host] = "was drained when the run began"
        elif status.hosts and (node.host not in hosts or not hosts[node.host].keeper_pid):
            unfit.setdefault(node.host, "had no host agent when the run began")
        elif node.name in placement.quarantined:
            unfit.setdefault(node.host, f"has {node.name}, which {placement.quarantined[node.name]}")
    return unfit


def _unfit_node(
    trial: Trial,
    bed: BedSpec,
    status: BedStatus,
    node: NodeSpec,
    members: Collection[str],
    gaps: Sequence[Gap],
    backend: str,
) -> str:
    if bed.provider == "docker" and bed.network == "private":
        return "has a private network, which no other host reaches"
    if not (node.address or address(bed, status, node)[0]):
        return f"has no node whose address {node.name} could have; set ccbed_address"
    if backend == "nccl" and 0 <= node.gpus < trial.world.ranks_per_node:
        return f"has {node.gpus} GPU for {node.name}, and the trial needs {trial.world.ranks_per_node}"
    names = {*members, node.name}
    apart = (gap for gap in gaps if node.name in gap.nodes or (gap.other_nodes and node.name in gap.other_nodes))
    shared = (gap.reason for gap in apart if gap.nodes & names and (gap.other_nodes is None or gap.other_nodes & names))
    reason = next(shared, "")
    return f"does not share {bed.shared_dir}: {reason}" if reason else ""
