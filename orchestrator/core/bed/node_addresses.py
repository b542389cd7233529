"""The address of each node on its host, and why it is that one: chosen and checked before any node is changed.

The address by which a host is reached need not be its own (a jump host, NAT) nor on the interface of the bed; then an address
of that interface counts, else of the default route.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from ...model.bed import BedSpec, BedStatus, HostSpec, NodeSpec
from ...model.errors import InfrastructureError
from ...model.frozen import dataclass, replace

#: Interface -> its addresses, as ``system/host_facts.py`` lists them: that of the default route first, the loopback last.
Interfaces = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An address with its interface and the setting that decided; or a problem."""

    address: str = ""
    interface: str = ""
    reason: str = ""
    problem: str = ""


def place(bed: BedSpec, status: BedStatus) -> BedSpec:
    """The bed with the address of each node whose host was observed. Raises InfrastructureError with a line per host."""
    known, problems = choices(bed, status), dict[str, None]()
    for node, choice in known.items():
        if choice.problem:
            problems[f"host {bed.node(node).host}: {choice.problem}"] = None
    if problems:
        raise InfrastructureError(*problems, hint="set ccbed_interface or ccbed_address of that host")
    moved = {node: choice.address for node, choice in known.items() if bed.node(node).address}
    nodes, replacements = (
        tuple(replace(node, address=moved.get(node.name, node.address)) for node in part)
        for part in (bed.nodes, bed.replacements)
    )
    return replace(bed, nodes=nodes, replacements=replacements)


def choices(bed: BedSpec, status: BedStatus) -> dict[str, Choice]:
    """Node -> its address. Only nodes in the network of a host that was observed have one here."""
    if bed.provider != "docker" or bed.network != "host":
        return {}
    hosts, interfaces = {host.name: host for host in bed.hosts}, {host.name: host.interfaces for host in status.hosts}
    return {
        node.name: _choose(node, hosts[node.host], interfaces[node.host], is_alone=len(hosts) < 2)
        for node in bed.all_nodes
        if interfaces.get(node.host) and node.host in hosts
    }


def describe(bed: BedSpec, status: BedStatus) -> Iterator[str]:
    """A line for each interface and reason: ``eth0 (ccbed_interface): h1 198.18.0.1, h2 198.18.0.2``."""
    groups: dict[str, dict[str, None]] = {}
    for node, choice in choices(bed, status).items():
        host = f"{bed.node(node).host} {choice.address}"
        groups.setdefault(f"{choice.interface} ({choice.reason})", {})[host] = None
    for text, hosts in groups.items():
        yield f"{text}: {', '.join(hosts)}"


def _choose(node: NodeSpec, host: HostSpec, interfaces: Interfaces, *, is_alone: bool) -> Choice:
    present = ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in interfaces.items())
    if node.interface and node.interface not in interfaces:
        return Choice(problem=f"has no interface {node.interface} with an address; present: {present}")
    gloo = node.env.get("GLOO_SOCKET_IFNAME", "")
    for name in gloo.split(",") if gloo else ():
        if name not in interfaces:
            why = "gloo knows no exceptions, only NCCL does" if name[:1] == "^" else f"there is no interface {name}"
            return Choice(problem=f"GLOO_SOCKET_IFNAME is {gloo}, and {why}; present: {present}")
    holders = [name for name, addresses in interfaces.items() if node.address in addresses]
    is_reached = node.address == host.address
    if node.address and (node.interface in holders or (holders and not node.interface)):
        reason = "the address by which it is reached" if is_reached else "ccbed_address"
        return _routable(Choice(address=node.address, interface=node.interface or holders[0], reason=reason), is_alone)
    if node.address and not is_reached:
        where = f"not on {node.interface}" if holders else "on no interface"
        return Choice(problem=f"{node.address} is {where} there; present: {present}")
    name = node.interface or next(iter(interfaces))
    reason = "ccbed_interface" if node.interface else "the interface of its default route"
    return _routable(Choice(address=interfaces[name][0], interface=name, reason=reason), is_alone)


def _routable(choice: Choice, is_alone: bool) -> Choice:
    if is_alone or not ipaddress.ip_address(choice.address).is_loopback:
        return choice
    return Choice(
        problem=f"{choice.address} on {choice.interface} is a loopback address, which no other host can reach"
    )
