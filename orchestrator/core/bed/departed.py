"""Hosts and nodes that were brought up before: which names stay with their hosts, and what left the inventory. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.bed import BedSpec, BedStatus, Change, DepartedHost, HostSpec, Role

#: (host, role) of a node that is wanted.
Seat = tuple[str, Role]


def names(seats: Sequence[Seat], before: BedSpec | None) -> tuple[str, ...]:
    """A name for each seat: what its host had before, in the same role if it can be; else one that no host has.

    ``before``: the bed as it was last brought up.
    """
    recorded = {node.name: (node.host, node.role) for node in before.nodes} if before else {}
    for departed in before.departed if before else ():
        recorded |= dict.fromkeys(departed.nodes, (departed.host.name, "node"))
    taken = frozenset(recorded)
    fresh = (f"n{number}" for number in itertools.count() if f"n{number}" not in taken)
    chosen: dict[int, str] = {}
    for same_role in (True, False):
        for index, (host, role) in enumerate(seats):
            if index not in chosen and (name := _recorded(recorded, host, role if same_role else None)):
                chosen[index] = name
                del recorded[name]
    return tuple(chosen.get(index) or next(fresh) for index in range(len(seats)))


def hosts(wanted: Collection[str], before: BedSpec | None) -> tuple[DepartedHost, ...]:
    """The hosts that were brought up, are not wanted any more, and were not found empty since.

    Of their variables only those are kept by which they are reached.
    """
    if before is None:
        return ()
    gone = [_departed(before, host) for host in before.hosts] + list(before.departed)
    return tuple(departed for departed in gone if departed.host.name not in wanted)


def bed_of(bed: BedSpec) -> BedSpec:
    """The bed that is left on the hosts that departed: no node is wanted there."""
    return replace(bed, hosts=tuple(departed.host for departed in bed.departed), nodes=(), departed=())


def whole(bed: BedSpec) -> BedSpec:
    """The bed with the hosts that departed, to end everything that was ever brought up."""
    return replace(bed, hosts=(*bed.hosts, *(departed.host for departed in bed.departed)))


def changes(bed: BedSpec, status: BedStatus, away: Mapping[str, str]) -> tuple[Change, ...]:
    """What is to be done on the hosts that departed. ``away``: those that are not reached, and why."""
    return tuple(change for departed in bed.departed for change in _changes(departed, status, away))


def remembered(bed: BedSpec, changes: Sequence[Change]) -> BedSpec:
    """The bed without the hosts that were found empty: those of which no change tells."""
    left = {change.host for change in changes}
    return replace(bed, departed=tuple(one for one in bed.departed if one.host.name in left))


def to_clear(bed: BedSpec, changes: Sequence[Change]) -> tuple[HostSpec, ...]:
    """The hosts on which something is to be removed."""
    reached = {change.host for change in changes if change.action == "remove"}
    return tuple(one.host for one in bed.departed if one.host.name in reached)


def _recorded(recorded: Mapping[str, tuple[str, str]], host: str, role: str | None) -> str:
    fitting = (name for name, (at, as_) in recorded.items() if at == host and role in (None, as_))
    return next(fitting, "")


def _departed(before: BedSpec, host: HostSpec) -> DepartedHost:
    reached = replace(host, power={}, switch_port={}, engine_control={}, ssh_control={})
    return DepartedHost(host=reached, nodes=tuple(node.name for node in before.nodes if node.host == host.name))


def _changes(departed: DepartedHost, status: BedStatus, away: Mapping[str, str]) -> Iterator[Change]:
    host = departed.host.name
    if host in away:
        reason = f"its host {host} is no longer in the inventory, and is not reached: {away[host]}"
        yield from (
            Change(action="keep", node=name, host=host, reason=reason) for name in departed.nodes or ("keeper",)
        )
        return
    reason = f"its host {host} is no longer in the inventory"
    yield from (Change(action="remove", node=name, host=host, reason=reason) for name in _left(host, status))


def _left(host: str, status: BedStatus) -> tuple[str, ...]:
    """What of the bed is on a host: nodes by name, its keeper, containers that ended."""
    found = next((one for one in status.hosts if one.name == host), None)
    nodes = sorted((node.name for node in status.nodes if node.host == host), key=lambda name: (len(name), name))
    keeper = ["keeper"] if found and found.keeper_pid else []
    ended = ["ended containers"] if found and found.containers > len(nodes) else []
    return (*nodes, *keeper, *ended)
