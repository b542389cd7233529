"""The emulated fabric of a bed of processes: which node has which address on which leaf, and what names resolve to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...model.bed import LinkSpec, PortSpec

#: The interface of a node, and the network of all of them: private, and nothing but the bed's own switch is in it.
INTERFACE = "eth0"
NETWORK = "10.77"
PREFIX = 16
_EACH = 250
#: What each kind that may be missing is for, and the option with which a kernel is built to have it.
_KINDS = {
    "bridge": ("the switch", "BRIDGE"),
    "veth": ("links", "VETH"),
    "tbf": ("rate", "NET_SCH_TBF"),
    "netem": ("delay and loss", "NET_SCH_NETEM"),
}
_FAILED = re.compile(r"^Command failed -:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What an emulated fabric needs and is not there, and what to do about it. ``asked``: only ``ccbed_link`` wants it."""

    text: str
    fix: str
    asked: bool = False


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
    they say nothing about the nodes' names and addresses. Who is connected to over an IPv6 socket is looked up as
    ``::ffff:10.77.0.1``; that has a name of its own, so that a node's name stands for one address only."""
    lines = [*(f"{where}\t{name}" for name, where in nodes.items())]
    lines += [f"::ffff:{where}\t{name}.fabric" for name, where in nodes.items()]
    taken = {*nodes, *nodes.values()}
    kept = (line.rstrip("\n") for line in own)
    return "\n".join([*lines, *(line for line in kept if not taken & set(line.partition("#")[0].split()))]) + "\n"


def trial(link: LinkSpec | None) -> dict[str, dict[str, str]]:
    """What is tried in a namespace that is thrown away: program -> kind -> the line that needs it. Each line stands by itself."""
    tried = {"bridge": "link add try0 type bridge", "veth": "link add try1 type veth peer name try2"}
    shapers = {}
    if link and (link.rate or link.uplink):
        shapers["tbf"] = "qdisc replace dev lo root tbf rate 1mbit burst 5000 limit 50000"
    if link and (link.delay_s or link.loss):
        shapers["netem"] = "qdisc replace dev lo root netem delay 1ms"
    return {"ip": tried, "tc": shapers}


def untried(code: int, said: str, kinds: Sequence[str], kernel: str) -> tuple[Lack, ...]:
    """What is missing by what one of the programs said of the lines of a trial."""
    failed = [kinds[int(number) - 1] for number in _FAILED.findall(said) if int(number) <= len(kinds)]
    if code and not failed:
        text = f"no namespaces can be made here: {' '.join(said.split()) or f'exit code {code}'}"
        return (
            Lack(text=text, fix="in a container: give it CAP_SYS_ADMIN and CAP_NET_ADMIN, or use the machine itself"),
        )
    return tuple(missing(kind, kernel) for kind in failed)


def missing(kind: str, kernel: str) -> Lack:
    """A kind of link or shaper that the kernel does not have."""
    what, option = _KINDS[kind]
    instead = "remove delay and loss from ccbed_link, or " if kind == "netem" else ""
    return Lack(
        text=f"kernel {kernel} has no {kind} ({what})",
        fix=f"{instead}use a kernel with CONFIG_{option} (modprobe tells)",
        asked=kind in ("tbf", "netem"),
    )
