"""Departed hosts: nodes keep their names across inventories, and hosts that left the inventory are cleaned up."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.bed import BedSpec, BedStatus, Change, DepartedHost, HostSpec, Role

#: (host, role) of a node that shall exist.
Seat = tuple[str, Role]


def node_names(seats: Sequence[Seat], earlier: BedSpec | None) -> tuple[str, ...]:
    """A name per seat: a name that its host had earlier, if possible in the same role; else an unused name.

    ``earlier``: the bed as it was last brought up.
    """
    recorded = {node.name: (node.host, node.role) for node in earlier.all_nodes} if earlier else {}
    for departed in earlier.departed if earlier else ():
        recorded |= dict.fromkeys(departed.nodes, (departed.host.name, "node"))
    used = frozenset(recorded)
    unused = (f"n{number}" for number in itertools.count() if f"n{number}" not in used)
    chosen: dict[int, str] = {}
    for same_role in (True, False):
        for index, (host, role) in enumerate(seats):
            if index not in chosen and (name := _find_name(recorded, host, role if same_role else None)):
                chosen[index] = name
                del recorded[name]
    return tuple(chosen.get(index) or next(unused) for index in range(len(seats)))


def departed_hosts(wanted: Collection[str], earlier: BedSpec | None) -> tuple[DepartedHost, ...]:
    """The hosts that were brought up, left the inventory, and have not been cleaned up yet.

    Of their variables only those for the connection are kept.
    """
    if earlier is None:
        return ()
    candidates = [_departed(earlier, host) for host in earlier.hosts] + list(earlier.departed)
    return tuple(departed for departed in candidates if departed.host.name not in wanted)


def departed_bed(bed: BedSpec) -> BedSpec:
    """The bed on the departed hosts only: no node shall exist there."""
    return replace(bed, hosts=tuple(departed.host for departed in bed.departed), nodes=(), departed=())


def with_departed_hosts(bed: BedSpec) -> BedSpec:
    """The bed including its departed hosts, to shut down everything that was ever brought up."""
    return replace(bed, hosts=(*bed.hosts, *(departed.host for departed in bed.departed)))


def changes(
    bed: BedSpec, status: BedStatus, unreachable: Mapping[str, str], present: Collection[str] = ()
) -> tuple[Change, ...]:
    """The changes on departed hosts. ``unreachable``: host -> why. A host with a directory that is ``present`` was renamed."""
    renamed = {host.name for host in status.hosts if host.directory_id in present}
    left = (departed for departed in bed.departed if departed.host.name not in renamed)
    return tuple(change for departed in left for change in _changes(departed, status, unreachable))


def without_empty_hosts(bed: BedSpec, changes: Sequence[Change], observed: Collection[str]) -> BedSpec:
    """The bed without the departed hosts that are empty: those that were ``observed`` and have no change."""
    hosts = {change.host for change in changes}
    kept = (entry for entry in bed.departed if entry.host.name in hosts or entry.host.name not in observed)
    return replace(bed, departed=tuple(kept))


def hosts_to_clear(bed: BedSpec, changes: Sequence[Change]) -> tuple[HostSpec, ...]:
    """The hosts from which something is removed."""
    hosts = {change.host for change in changes if change.action == "remove"}
    return tuple(departed.host for departed in bed.departed if departed.host.name in hosts)


def _find_name(recorded: Mapping[str, tuple[str, str]], host: str, role: str | None) -> str:
    names = (name for name, (its_host, its_role) in recorded.items() if its_host == host and role in (None, its_role))
    return next(names, "")


def _departed(earlier: BedSpec, host: HostSpec) -> DepartedHost:
    connection = replace(host, power={}, switch_port={}, engine_control={}, ssh_control={})
    return DepartedHost(host=connection, nodes=tuple(node.name for node in earlier.nodes if node.host == host.name))


def _changes(departed: DepartedHost, status: BedStatus, unreachable: Mapping[str, str]) -> Iterator[Change]:
    host = departed.host.name
    if host in unreachable:
        reason = f"its host {host} is no longer in the inventory, and cannot be reached: {unreachable[host]}"
        yield from (
            Change(action="keep", node=name, host=host, reason=reason) for name in departed.nodes or ("keeper",)
        )
        return
    reason = f"its host {host} is no longer in the inventory"
    yield from (Change(action="remove", node=name, host=host, reason=reason) for name in _remaining(host, status))


def _remaining(host: str, status: BedStatus) -> tuple[str, ...]:
    """The parts of the bed on a host: nodes by name, its keeper, ended containers."""
    host_status = next((entry for entry in status.hosts if entry.name == host), None)
    nodes = sorted((node.name for node in status.nodes if node.host == host), key=lambda name: (len(name), name))
    keeper = ["keeper"] if host_status and host_status.keeper_pid else []
    ended = ["ended containers"] if host_status and host_status.containers > len(nodes) else []
    return (*nodes, *keeper, *ended)
