"""The emulated fabric of a bed of processes: links in the units of tc, addresses, leaf switches, name resolution, kernel support."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model.bed import BedSpec, LinkSpec, PortSpec
from ...model.requirements import Requirement
from ..spec import written_values

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s|ps)?", re.IGNORECASE)
_BYTES_PER_SECOND = re.compile(r"[\d.]+\s*[kmgt]?i?b?ps", re.IGNORECASE)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LOSS = re.compile(r"(\d+(?:\.\d+)?)\s*%")
MIN_RATE, MAX_RATE = 8_000, 400 * 10**9
#: A bucket must hold a whole frame, or no packet is ever sent.
MIN_BURST, MAX_BURST = 1600, 64 * 1024**2
MAX_DELAY_S = 10.0
#: The default bucket holds the bytes of this time. If all nodes send and receive at once on few cores, the kernel wakes a
#: shaper a millisecond late or more, and the rate beyond the bucket is lost: with 1 ms a ring of four takes 6 % longer.
#: A larger bucket lets more bytes exceed the rate after a pause: a message gains up to this time when both ends were idle.
BURST_S = 0.002
BURST_FLOOR = 32 * 1024


def parse(value: Any) -> LinkSpec:
    """``{rate: 1gbit, burst: 64k, delay: 1ms, loss: 0.1%, groups: 2, uplink: 1gbit}``, all optional. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of {', '.join(_READERS)}")
    if unknown := [str(key) for key in value if key not in _READERS]:
        raise ValueError(f"unknown key {unknown[0]}; {written_values.nearest(unknown[0], _READERS)}")
    if not value:
        raise ValueError("is empty; give a rate, such as {rate: 1gbit}")
    settings = {key: _read(key, setting) for key, setting in value.items()}
    rate, uplink = settings.get("rate", 0), settings.get("uplink", 0)
    _check(settings)
    return LinkSpec(
        rate=rate,
        burst=settings.get("burst") or (default_burst(rate) if rate else 0),
        delay_s=settings.get("delay", 0.0),
        loss=settings.get("loss", 0.0),
        groups=settings.get("groups", 1),
        uplink=uplink,
        uplink_burst=default_burst(uplink) if uplink else 0,
    )


def default_burst(rate: int) -> int:
    """Bytes that a bucket of ``rate`` bit/s holds: small enough to limit bursts after a pause, and large enough to reach the rate."""
    return max(BURST_FLOOR, math.ceil(rate / 8 * BURST_S))


def text(link: LinkSpec | None) -> str:
    """``1 Gbit/s tbf, burst 31 kB``; settings that are not set are omitted."""
    if link is None or link == LinkSpec():
        return "unshaped"
    shaped = [f"{speed(link.rate)} tbf, burst {link.burst / 1000:.3g} kB"] if link.rate else []
    delay = [f"delay {link.delay_s * 1000:g} ms"] if link.delay_s else []
    loss = [f"loss {link.loss * 100:g}%"] if link.loss else []
    tiers = [f"{link.groups} groups behind uplinks of {speed(link.uplink)}"] if link.groups > 1 else []
    return ", ".join([*shaped, *delay, *loss, *tiers])


def widest(every: Sequence[LinkSpec | None]) -> LinkSpec | None:
    """The link of a bed whose hosts differ: each setting is the largest of all hosts. So bounds of time hold for every node.

    None where no host has a link.
    """
    known = [link for link in every if link is not None]
    if not known:
        return None
    names = ("rate", "burst", "delay_s", "loss")
    return replace(known[0], **{name: max(getattr(link, name) for link in known) for name in names})


def bed_text(bed: BedSpec) -> str:
    """The links of a bed; with the names of their nodes where they differ."""
    nodes: dict[str, list[str]] = {}
    for node in bed.nodes:
        nodes.setdefault(text(node.port.link if node.port else bed.link), []).append(node.name)
    if len(nodes) < 2:
        return text(bed.link)
    return "; ".join(f"{shaping} ({' '.join(names)})" for shaping, names in nodes.items())


def speed(rate: int) -> str:
    """bit/s in the largest unit that keeps it short: ``145 Mbit/s``."""
    for unit, size in (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if rate >= size:
            return f"{rate / size:.6g} {unit}"
    return f"{rate} bit/s"


def _read(key: str, setting: Any) -> Any:
    try:
        return _READERS[key](setting)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _check(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for settings that exclude each other."""
    if "burst" in settings and "rate" not in settings:
        raise ValueError("burst: is the bucket of a rate; give a rate as well")
    if ("uplink" in settings) != (settings.get("groups", 1) > 1):
        raise ValueError("uplink: goes with groups: 2 or more, and groups with an uplink such as 1gbit")


def _rate(setting: Any) -> int:
    match = _RATE.fullmatch(str(setting).strip())
    if not match:
        problem = "must be a rate such as 145mbit or 1gbit"
        if _BYTES_PER_SECOND.fullmatch(str(setting).strip()):
            problem += " (to tc, bps are bytes)"
        raise ValueError(problem)
    rate = round(float(match[1]) * _DECIMAL[match[2].lower()])
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ValueError(f"must be from {speed(MIN_RATE)} to {speed(MAX_RATE)}")
    return rate


def _burst(setting: Any) -> int:
    size = written_values.size(str(setting))
    if not MIN_BURST <= size <= MAX_BURST:
        raise ValueError(f"must be from {MIN_BURST} bytes, a frame, to {MAX_BURST // 1024**2}m")
    return size


def _delay(setting: Any) -> float:
    delay = written_values.seconds(setting)
    if delay > MAX_DELAY_S:
        raise ValueError(f"must be <= {MAX_DELAY_S:g}s")
    return delay


def _loss(setting: Any) -> float:
    match = _LOSS.fullmatch(str(setting).strip())
    part = float(match[1]) / 100 if match else 1.0
    if part >= 1.0:
        raise ValueError("must be a part of the packets such as 0.1%")
    return part


def _groups(setting: Any) -> int:
    return written_values.whole(setting, 1)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "rate": _rate,
    "burst": _burst,
    "delay": _delay,
    "loss": _loss,
    "groups": _groups,
    "uplink": _rate,
}


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
#: The name of a requirement that only ``ccbed_link`` has.
LINK = "ccbed_link"
_FAILED = re.compile(r"^Command failed -:(\d+)", re.MULTILINE)


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


def parse_probe(code: int, output: str, kinds: Sequence[str], kernel: str) -> tuple[Requirement, ...]:
    """The missing kinds according to a program's exit code and output for the lines of ``probe_commands``."""
    failed = [kinds[int(number) - 1] for number in _FAILED.findall(output) if int(number) <= len(kinds)]
    if code and not failed:
        text = f"cannot create network namespaces: {' '.join(output.split()) or f'exit code {code}'}"
        return (
            Requirement.fail(
                "fabric", text, "in a container: give it CAP_SYS_ADMIN and CAP_NET_ADMIN, or use the machine itself"
            ),
        )
    return tuple(missing_kind(kind, kernel) for kind in failed)


def missing_kind(kind: str, kernel: str) -> Requirement:
    """The error for a kind of link or shaper that the kernel lacks."""
    purpose, option = _KINDS[kind]
    instead = "remove delay and loss from ccbed_link, or " if kind == "netem" else ""
    return Requirement.fail(
        LINK if kind in ("tbf", "netem") else "fabric",
        f"kernel {kernel} has no {kind} ({purpose})",
        f"{instead}use a kernel with CONFIG_{option} (check with modprobe)",
    )
