"""What the hosts of a bed of containers say that is there -> the bed's status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ...model.bed import BedSpec, BedStatus, HostStatus, NodeSpec, NodeStatus

ALIVE = ("warm", "busy", "starting", "paused")


def bed_status(
    bed: BedSpec, looks: Mapping[str, Mapping[str, Any]], problems: Mapping[str, str] = MappingProxyType({})
) -> BedStatus:
    """``looks``: host -> what ``agent/looking.py`` found there; ``problems``: host -> why nobody knows."""
    wanted = {node.name: node for node in bed.nodes}
    found = [_node(wanted, one, look["interfaces"], host) for host, look in looks.items() for one in look["nodes"]]
    gone = (node for node in bed.nodes if node.host in problems)
    unknown = [NodeStatus(name=node.name, state="unreachable", reason=problems[node.host]) for node in gone]
    keepers = [look["keeper"] for look in looks.values()]
    alive = bool(keepers) and all(keeper["alive"] for keeper in keepers)
    return BedStatus(
        name=bed.name,
        nodes=(*(one for one in found if one.name in wanted or one.state in ALIVE), *unknown),
        keeper_pid=int(keepers[0].get("pid", 0)) if alive else 0,
        keeper_hash=_odd(bed.agent, (str(keeper.get("agent", "")) for keeper in keepers)),
        leases=tuple(lease for look in looks.values() for lease in look["leases"]),
        detached=True,
        hosts=tuple(_host(name, look) for name, look in looks.items()),
    )


def _host(name: str, look: Mapping[str, Any]) -> HostStatus:
    keeper = look["keeper"]
    pid = int(keeper.get("pid", 0)) if keeper["alive"] else 0
    said = stamp(look.get("stamp", {}), str(look.get("machine", "")))
    return HostStatus(
        name=name,
        keeper_pid=pid,
        engine=str(look.get("engine", "")),
        stamp=said,
        place=str(look.get("place", "")),
        containers=len(look["nodes"]),
    )


def stamp(left: Mapping[str, Any], machine: str) -> str:
    """The fingerprint that preparation left on this machine; empty for what it left on another."""
    return str(left.get("fingerprint", "")) if str(left.get("machine", "")) == machine else ""


def _odd(wanted: str, hashes: Iterable[str]) -> str:
    """The hash that all keepers have, or one that is not as it should be."""
    return next((one for one in hashes if one != wanted), wanted)


def _node(
    nodes: Mapping[str, NodeSpec], found: Mapping[str, Any], interfaces: Mapping[str, str], host: str
) -> NodeStatus:
    """In a network of its own a container has one interface; else those of its host are its own.

    One that has the name of another host's node is named with its host.
    """
    wanted = nodes.get(found["name"])
    if wanted and wanted.host != host:
        found, wanted = {**found, "name": f"{found['name']}@{host}"}, None
    if found["address"]:
        address, interface = str(found["address"]), "eth0"
    else:
        address, interface = _of_host(wanted, interfaces)
    fields = {name: found[name] for name in ("name", "state", "spec_hash", "incarnation", "ordinal", "pid", "reason")}
    return NodeStatus(
        **fields,
        host=host,
        own_mib=found["own_mib"],
        shared_mib=found["shared_mib"],
        address=wanted.address if wanted and wanted.address else address,
        interface=wanted.interface if wanted and wanted.interface else interface,
    )


def _of_host(wanted: NodeSpec | None, interfaces: Mapping[str, str]) -> tuple[str, str]:
    """The address that is asked for, else that of the interface that is asked for, else that of the default route."""
    for interface, address in interfaces.items():
        if wanted and (wanted.address == address or (not wanted.address and wanted.interface == interface)):
            return address, interface
    interface = next(iter(interfaces), "")
    return interfaces.get(interface, ""), interface
