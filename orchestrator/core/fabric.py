"""The emulated fabric of a bed of processes: which node has which address on which leaf, and what names resolve to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..model.bed import LinkSpec, PortSpec

#: The interface of a node, and the network of all of them: private, and nothing but the bed's own switch is in it.
INTERFACE = "eth0"
NETWORK = "10.77"
PREFIX = 16
_EACH = 250


def address(index: int) -> str:
    """Of the node with this index: ``10.77.0.1`` for the first."""
    return f"{NETWORK}.{index // _EACH}.{index % _EACH + 1}"


def ports(roles: Sequence[str], link: LinkSpec | None) -> tuple[PortSpec, ...]:
    """The port of each node by its role: members contiguous over the groups, spares with the first."""
    shaped = link or LinkSpec()
    members = sum(role == "node" for role in roles)
    seats = iter(range(members))
    groups = [next(seats) * shaped.groups // members if role == "node" else 0 for role in roles]
    return tuple(PortSpec(group=group, link=shaped) for group in groups)


def hosts(nodes: Mapping[str, str], own: Iterable[str]) -> str:
    """The hosts file of every node, from name -> address. ``own``: the lines of this machine's, which are kept where
    they say nothing about the nodes' names and addresses."""
    lines = [*(f"{where}\t{name}" for name, where in nodes.items())]
    taken = {*nodes, *nodes.values()}
    kept = (line.rstrip("\n") for line in own)
    return "\n".join([*lines, *(line for line in kept if not taken & set(line.partition("#")[0].split()))]) + "\n"
