"""The status of a bed of containers, from the observations of its hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...model.bed import BedSpec, BedStatus, HostStatus, NodeSpec, NodeStatus

ALIVE = ("warm", "busy", "starting", "paused")


def bed_status(
    bed: BedSpec, observations: Mapping[str, Mapping[str, Any]], problems: Mapping[str, str] = MappingProxyType({})
) -> BedStatus:
    """``observations``: host -> output of ``node/keeper/container_status.py``; ``problems``: host -> why it is unknown."""
    specs, wanted = {node.name: node for node in bed.all_nodes}, {node.name for node in bed.nodes}
    observed = [
        _node(specs, node, observation["interfaces"], host)
        for host, observation in observations.items()
        for node in observation["nodes"]
    ]
    unobserved = (node for node in bed.nodes if node.host in problems)
    unknown = [NodeStatus(name=node.name, state="unreachable", reason=problems[node.host]) for node in unobserved]
    keepers = [observation["keeper"] for observation in observations.values()]
    alive = bool(keepers) and all(keeper["alive"] for keeper in keepers)
    return BedStatus(
        name=bed.name,
        nodes=(*(node for node in observed if node.name in wanted or node.state in ALIVE), *unknown),
        keeper_pid=int(keepers[0].get("pid", 0)) if alive else 0,
        keeper_hash=_common_hash(bed.agent, (str(keeper.get("agent", "")) for keeper in keepers)),
        keeper_python=next((str(keeper["python"]) for keeper in keepers if keeper.get("python")), ""),
        leases=tuple(lease for observation in observations.values() for lease in observation["leases"]),
        keeper_loss=next(filter(None, (str(keeper.get("loss", "")) for keeper in keepers)), ""),
        detached=True,
        hosts=tuple(_host(name, observation) for name, observation in observations.items()),
    )


def _host(name: str, observation: Mapping[str, Any]) -> HostStatus:
    keeper = observation["keeper"]
    pid = int(keeper.get("pid", 0)) if keeper["alive"] else 0
    unit = observation.get("unit", {})
    fingerprint = preparation_fingerprint(observation.get("stamp", {}), str(observation.get("machine", "")))
    return HostStatus(
        name=name,
        keeper_pid=pid,
        engine=str(observation.get("engine", "")),
        stamp=fingerprint,
        directory_id=str(observation.get("place", "")),
        containers=len(observation["nodes"]),
        unit=unit.get("scope", ""),
        unit_problem=str(unit.get("problem", "")),
        keeper_loss=str(keeper.get("loss", "")),
        interfaces={name: tuple(addresses) for name, addresses in observation.get("interfaces", {}).items()},
    )


def preparation_fingerprint(stamp: Mapping[str, Any], machine: str) -> str:
    """The fingerprint in a preparation's stamp; empty if the stamp is from another machine."""
    return str(stamp.get("fingerprint", "")) if str(stamp.get("machine", "")) == machine else ""


def _common_hash(expected: str, hashes: Iterable[str]) -> str:
    """The expected hash if all keepers have it, else a different hash of a keeper."""
    return next((hash_ for hash_ in hashes if hash_ != expected), expected)


def _node(
    specs: Mapping[str, NodeSpec], observed: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]], host: str
) -> NodeStatus:
    """Return a node's status. A container in a private network has one interface; otherwise it uses the interfaces of its host.

    A node with the name of another host's node is named ``name@host``.
    """
    spec = specs.get(observed["name"])
    if spec and spec.host != host:
        observed, spec = {**observed, "name": f"{observed['name']}@{host}"}, None
    if observed["address"]:
        address, interface = str(observed["address"]), "eth0"
    else:
        address, interface = _host_address(spec, interfaces)
    names = ("name", "state", "spec_hash", "incarnation", "ordinal", "pid", "reason")
    fields = {name: observed[name] for name in names}
    return NodeStatus(
        **fields,
        host=host,
        own_mib=observed["own_mib"],
        shared_mib=observed["shared_mib"],
        address=spec.address if spec and spec.address else address,
        interface=spec.interface if spec and spec.interface else interface,
        python=str(observed.get("python", "")),
        torch=str(observed.get("torch", "")),
        changed=tuple(observed.get("changed", ())),
    )


def _host_address(spec: NodeSpec | None, interfaces: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The address in the spec, else that of the interface in the spec, else that of the default route."""
    for interface, addresses in interfaces.items():
        if spec and (spec.address in addresses or (not spec.address and spec.interface == interface)):
            return spec.address or addresses[0], interface
    interface = next(iter(interfaces), "")
    return next(iter(interfaces.get(interface, ())), ""), interface
