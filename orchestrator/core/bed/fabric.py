"""The emulated fabric of a bed of processes: the address and leaf switch of each node, name resolution, kernel support."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ...model.bed import LinkSpec, PortSpec
from ...model.frozen import dataclass

#: The interface of a node, and the network of all nodes: private, with only the bed's own switch in it.
INTERFACE = "eth0"
NETWORK = "10.77"
PREFIX = 16
_ADDRESSES_PER_BLOCK = 250
#: Kind of link or shaper -> its purpose, and the option of the kernel's configuration.
_KINDS = {
    "bridge": ("the switch", "BRIDGE"),
    "veth": ("links", "VETH"),
    "tbf": ("rate", "NET_SCH_TBF"),
    "netem": ("delay and loss", "NET_SCH_NETEM"),
}
_FAILED = re.compile(r"^Command failed -:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A requirement of the fabric that is missing, and the fix. ``only_for_link``: only ``ccbed_link`` requires it."""

    text: str
    fix: str
    only_for_link: bool = False


def address(index: int) -> str:
    """The address of the node with this index: ``10.77.0.1`` for the first."""
    return f"{NETWORK}.{index // _ADDRESSES_PER_BLOCK}.{index % _ADDRESSES_PER_BLOCK + 1}"


def ports(roles: Sequence[str], links: Sequence[LinkSpec | None]) -> tuple[PortSpec, ...]:
    """The port of each node: members are assigned to the groups in contiguous blocks, spares to the first group."""
    shaped = [link or LinkSpec() for link in links]
    members, count = sum(role == "node" for role in roles), max((link.groups for link in shaped), default=1)
    seats = iter(range(members))
    groups = [next(seats) * count // members if role == "node" else 0 for role in roles]
    return tuple(PortSpec(group=group, link=link) for group, link in zip(groups, shaped, strict=True))


def hosts_file(nodes: Mapping[str, str], own: Iterable[str]) -> str:
    """The hosts file of every node, from name -> address. ``own``: the lines of the controller's file.

    Own lines with a node's name or address are dropped. A peer of an IPv6 socket is looked up as ``::ffff:10.77.0.1``;
    that address has its own name, so that a node's name has only one address.
    """
    lines = [*(f"{address}\t{name}" for name, address in nodes.items())]
    lines += [f"::ffff:{address}\t{name}.fabric" for name, address in nodes.items()]
    used = {*nodes, *nodes.values()}
    stripped = (line.rstrip("\n") for line in own)
    return "\n".join([*lines, *(line for line in stripped if not used & set(line.partition("#")[0].split()))]) + "\n"


def probe_commands(link: LinkSpec | None) -> dict[str, dict[str, str]]:
    """Commands to probe the kernel in a temporary namespace: program -> kind -> an independent line that requires it."""
    link_kinds = {"bridge": "link add try0 type bridge", "veth": "link add try1 type veth peer name try2"}
    shapers = {}
    if link and (link.rate or link.uplink):
        shapers["tbf"] = "qdisc replace dev lo root tbf rate 1mbit burst 5000 limit 50000"
    if link and (link.delay_s or link.loss):
        shapers["netem"] = "qdisc replace dev lo root netem delay 1ms"
    return {"ip": link_kinds, "tc": shapers}


def parse_probe(code: int, output: str, kinds: Sequence[str], kernel: str) -> tuple[Lack, ...]:
    """The missing kinds according to a program's exit code and output for the lines of ``probe_commands``."""
    failed = [kinds[int(number) - 1] for number in _FAILED.findall(output) if int(number) <= len(kinds)]
    if code and not failed:
        text = f"cannot create network namespaces: {' '.join(output.split()) or f'exit code {code}'}"
        return (
            Lack(text=text, fix="in a container: give it CAP_SYS_ADMIN and CAP_NET_ADMIN, or use the machine itself"),
        )
    return tuple(missing_kind(kind, kernel) for kind in failed)


def missing_kind(kind: str, kernel: str) -> Lack:
    """The error for a kind of link or shaper that the kernel lacks."""
    purpose, option = _KINDS[kind]
    instead = "remove delay and loss from ccbed_link, or " if kind == "netem" else ""
    return Lack(
        text=f"kernel {kernel} has no {kind} ({purpose})",
        fix=f"{instead}use a kernel with CONFIG_{option} (check with modprobe)",
        only_for_link=kind in ("tbf", "netem"),
    )
