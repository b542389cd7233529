"""What ``ip`` and ``tc`` are told to build the switch of a fabric and to plug a node into it: lines of their batches. Pure."""

from __future__ import annotations

import ipaddress

from ...model.bed import LinkSpec

CORE = "core"
#: What a shaper keeps waiting, in bytes. A switch has less; but nothing is to be lost where only the rate is emulated.
QUEUE = 64 * 1024**2
#: The largest packet that a node hands to its shaper, as a part of the bucket and in bytes: what is larger than the bucket
#: is cut into frames, which costs much, and each second frame is acknowledged, which takes of the other direction; what is
#: as large as the bucket leaves the shaper no time to be late in.
PACKET, PACKET_LEAST, PACKET_MOST = 5 / 8, 3400, 65536
#: Packets that netem keeps waiting: its default of 1000 loses some wherever rate times delay is more.
PACKETS = 100_000


def leaf(group: int) -> str:
    """The bridge of a group of nodes."""
    return f"leaf{group}"


def mac(address: str) -> str:
    """The hardware address goes with the IPv4 address: whoever is started anew is known to its peers already."""
    return "02:cc:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


def switch(link: LinkSpec, alias: str) -> list[str]:
    """``ip`` in the switch's namespace: one bridge, or one for each group and the core between them."""
    bridges = [leaf(group) for group in range(link.groups)]
    lines = ["link set lo up"]
    for bridge in [*bridges, *([CORE] if link.groups > 1 else [])]:
        lines.append(f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
        lines.append(_up(bridge, f"{alias}/{bridge}"))
    for group in range(link.groups) if link.groups > 1 else ():
        lines.append(f"link add up{group} type veth peer name down{group}")
        lines.append(_up(f"up{group}", f"{alias}/uplink", leaf(group)))
        lines.append(_up(f"down{group}", f"{alias}/uplink", CORE))
    return lines


def uplinks(link: LinkSpec) -> list[str]:
    """``tc`` in the switch's namespace: both ends of every uplink."""
    ends = [f"{end}{group}" for group in range(link.groups) for end in ("up", "down")] if link.groups > 1 else []
    return [_tbf(end, link.uplink, link.uplink_burst) for end in ends]


def cable(port: str, address: str, switch_fd: int) -> list[str]:
    """``ip`` in a new node's namespace: a link whose other end is in the switch's, as ``port``."""
    peer = f"peer name {port} netns /proc/self/fd/{switch_fd}"
    return [f"link add eth0 address {mac(address)} type veth {peer}"]


def node(address: str, prefix: int, alias: str, link: LinkSpec) -> list[str]:
    """``ip`` in the node's namespace, once its link is there."""
    largest = min(max(int(link.burst * PACKET), PACKET_LEAST), PACKET_MOST)
    packets = [f"link set dev eth0 gso_max_size {largest}"] if link.rate else []
    return ["link set lo up", *packets, _up("eth0", alias), f"addr add {address}/{prefix} dev eth0"]


def port(name: str, group: int, alias: str) -> list[str]:
    """``ip`` in the switch's namespace, for the port of a node."""
    return [_up(name, alias, leaf(group))]


def port_rate(name: str, link: LinkSpec) -> list[str]:
    """``tc`` in the switch's namespace: what goes to the node."""
    return [_tbf(name, link.rate, link.burst)] if link.rate else []


def node_rate(link: LinkSpec) -> list[str]:
    """``tc`` in the node's namespace: what leaves it. Delay and loss are put on the way here, once."""
    shaped = [_tbf("eth0", link.rate, link.burst)] if link.rate else []
    if not (link.delay_s or link.loss):
        return shaped
    where = "parent 1:1" if shaped else "root"
    delay = f" delay {round(link.delay_s * 1e6)}us" if link.delay_s else ""
    loss = f" loss {link.loss * 100:.6g}%" if link.loss else ""
    return [*shaped, f"qdisc add dev eth0 {where} netem limit {PACKETS}{delay}{loss}"]


def _up(name: str, alias: str, bridge: str = "") -> str:
    """Up, labelled, in a bridge where one is named; without IPv6, whose announcements would be traffic."""
    return f"link set dev {name} {f'master {bridge} ' if bridge else ''}alias {alias} addrgenmode none up"


def _tbf(device: str, rate: int, burst: int) -> str:
    return f"qdisc add dev {device} root handle 1: tbf rate {rate}bit burst {burst} limit {QUEUE}"
