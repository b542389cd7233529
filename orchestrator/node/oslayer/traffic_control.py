"""Batch commands for ``ip`` and ``tc`` that build the switch of an emulated fabric and connect a node to it. Pure."""

from __future__ import annotations

import json
import re

from ...model.bed import LinkSpec, mac_address
from ...model.frozen import dataclass

CORE = "core"
#: The queue of a shaper. A real switch has a smaller one, but emulating a rate must not lose packets.
QUEUE_BYTES = 64 * 1024**2
#: The largest packet that a node hands to its shaper: a part of the bucket, between two limits in bytes. A packet larger than
#: the bucket is cut into frames; that costs CPU time, and the acknowledgement of every second frame takes rate from the
#: other direction. A packet as large as the bucket leaves the shaper no slack.
PACKET, PACKET_LEAST, PACKET_MOST = 5 / 8, 3400, 65536
#: Packets that a connection may have in the queue of its shaper.
QUEUED_PACKETS = 2
#: Bytes of a message that may wait in the socket.
UNSENT = 32768
#: The queue of netem. Its default of 1000 packets loses some if rate times delay is larger.
QUEUE_PACKETS = 100_000

#: The bucket of a link that was not shaped, in bytes: a few frames, and 1 ms at 400 Mbit/s.
SLOW_BURST = 50_000
#: The kernel rounds rates, by less than this part.
_ROUNDED = 0.01
_CLASS_RATE = re.compile(r"^class htb 2:1 .*\brate (\d+(?:\.\d+)?)([KMGT]?)bit\b", re.MULTILINE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A lower rate of a node's link, in bit/s. ``direction``: out, in or both; ``peer``: an address; empty: of all traffic."""

    direction: str
    rate: int
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rate of one end of a link, and of its traffic with one peer, in bit/s; 0: not shaped."""

    rate: int = 0
    peer: int = 0


def leaf_bridge(group: int) -> str:
    return f"leaf{group}"


def switch_commands(link: LinkSpec, alias: str) -> list[str]:
    """Return the lines for ``ip`` in the switch's namespace: one bridge, or one per group and a core that connects them."""
    bridges = [leaf_bridge(group) for group in range(link.groups)]
    lines = ["link set lo up"]
    for bridge in [*bridges, *([CORE] if link.groups > 1 else [])]:
        lines.append(f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
        lines.append(_up(bridge, f"{alias}/{bridge}"))
    for group in range(link.groups) if link.groups > 1 else ():
        lines.append(f"link add up{group} type veth peer name down{group}")
        lines.append(_up(f"up{group}", f"{alias}/uplink", leaf_bridge(group)))
        lines.append(_up(f"down{group}", f"{alias}/uplink", CORE))
    return lines


def uplink_commands(link: LinkSpec) -> list[str]:
    """Return the lines for ``tc`` in the switch's namespace: both ends of every uplink."""
    ends = [f"{end}{group}" for group in range(link.groups) for end in ("up", "down")] if link.groups > 1 else []
    return [_tbf(end, link.uplink, link.uplink_burst) for end in ends]


def cable_commands(port: str, address: str, switch_fd: int) -> list[str]:
    """Return the lines for ``ip`` in a new node's namespace: a link whose other end is ``port`` in the switch's namespace."""
    peer = f"peer name {port} netns /proc/self/fd/{switch_fd}"
    return [f"link add eth0 address {mac_address(address)} type veth {peer}"]


def node_commands(address: str, prefix: int, alias: str, link: LinkSpec) -> list[str]:
    """Return the lines for ``ip`` in the node's namespace, once its link exists."""
    packets = [f"link set dev eth0 gso_max_size {_largest_packet(link)}"] if link.rate else []
    return ["link set lo up", *packets, _up("eth0", alias), f"addr add {address}/{prefix} dev eth0"]


def tcp_settings(link: LinkSpec) -> dict[str, str]:
    """IPv4 sysctls of a node, for a steady rate on a link that loses nothing.

    BBR, the default of some hosts, nearly stops sending for 0.2 s in every 10 s to measure the empty link. Reno without loss
    raises its window without end, so that the kernel puts 20 ms of a message into the queue of the shaper; acknowledgements and
    the next messages to other nodes then wait behind it, and ports stay idle. A network card has a short queue. For the same
    reason little of a message may wait in the socket: a rank would send the next message while this one is still on its way.
    """
    if link.loss:
        return {}
    queued = QUEUED_PACKETS * _largest_packet(link)
    queue = {"tcp_limit_output_bytes": str(queued), "tcp_notsent_lowat": str(UNSENT)} if link.rate else {}
    return {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0", **queue}


def _largest_packet(link: LinkSpec) -> int:
    return min(max(int(link.burst * PACKET), PACKET_LEAST), PACKET_MOST)


def port_commands(name: str, group: int, alias: str) -> list[str]:
    """Return the lines for ``ip`` in the switch's namespace: the port of a node."""
    return [_up(name, alias, leaf_bridge(group))]


def port_rate_commands(name: str, link: LinkSpec) -> list[str]:
    """Return the lines for ``tc`` in the switch's namespace: the rate of the traffic to a node."""
    return [_tbf(name, link.rate, link.burst)] if link.rate else []


def node_rate_commands(link: LinkSpec) -> list[str]:
    """Return the lines for ``tc`` in the node's namespace: the rate of the traffic from it, and the delay and loss of the link."""
    shaped = [_tbf("eth0", link.rate, link.burst)] if link.rate else []
    if not (link.delay_s or link.loss):
        return shaped
    parent = "parent 1:1" if shaped else "root"
    delay = f" delay {round(link.delay_s * 1e6)}us" if link.delay_s else ""
    loss = f" loss {link.loss * 100:.6g}%" if link.loss else ""
    return [*shaped, f"qdisc add dev eth0 {parent} netem limit {QUEUE_PACKETS}{delay}{loss}"]


def lower_commands(device: str, direction: str, link: LinkSpec, lowered: Lowered) -> list[str]:
    """Return the lines for ``tc`` that lower the rate of one end of a link that has the rates of ``link``."""
    burst = link.burst or SLOW_BURST
    if not lowered.peer:
        return [_tbf(device, lowered.rate, burst, "change" if link.rate else "add")]
    end = "dst" if direction == "out" else "src"
    return [
        f"qdisc replace dev {device} {'parent 1:1' if link.rate else 'root'} handle 2: htb default 0",
        f"class add dev {device} parent 2: classid 2:1 htb rate {lowered.rate}bit burst {burst} cburst {burst} quantum 60000",
        f"filter add dev {device} parent 2: protocol ip u32 match ip {end} {lowered.peer}/32 flowid 2:1",
    ]


def restore_commands(device: str, link: LinkSpec, shown: Rates) -> list[str]:
    """Return ``tc`` lines that restore the rates of ``link`` at one end. A queue replaces the classes; packets in them are sent again."""
    if not link.rate:
        return [f"qdisc del dev {device} root"] if shown != Rates() else []
    queue = [f"qdisc replace dev {device} parent 1:1 bfifo limit {QUEUE_BYTES}"] if shown.peer else []
    return [*queue, *([_tbf(device, link.rate, link.burst, "change")] if shown.rate != link.rate else [])]


def shown_rates(qdiscs: str, classes: str) -> Rates:
    """The rates in the output of ``tc -j qdisc show`` and ``tc class show``; tc prints bytes per second in JSON."""
    rates = [item["options"]["rate"] * 8 for item in json.loads(qdiscs or "[]") if item.get("kind") == "tbf"]
    match = _CLASS_RATE.search(classes)
    return Rates(rate=rates[0] if rates else 0, peer=round(float(match[1]) * _UNITS[match[2]]) if match else 0)


def wanted_rates(direction: str, link: LinkSpec, lowered: Lowered | None) -> Rates:
    """The rates of that end of a link, with the lower rate where it applies."""
    if lowered is None or lowered.direction not in (direction, "both"):
        return Rates(rate=link.rate)
    return Rates(rate=link.rate, peer=lowered.rate) if lowered.peer else Rates(rate=lowered.rate)


def is_same(shown: Rates, wanted: Rates) -> bool:
    pairs = ((shown.rate, wanted.rate), (shown.peer, wanted.peer))
    return all(abs(rate - value) <= _ROUNDED * value for rate, value in pairs)


def rates_text(rates: Rates) -> str:
    """``145 Mbit/s``, ``145 Mbit/s, 29 Mbit/s with the peer``."""
    own = f"{rates.rate / 1e6:.6g} Mbit/s" if rates.rate else "unshaped"
    return f"{own}, {rates.peer / 1e6:.6g} Mbit/s with the peer" if rates.peer else own


def _up(name: str, alias: str, bridge: str = "") -> str:
    """Set an interface up, with an alias, in a bridge if one is named, and without IPv6 and its announcements."""
    return f"link set dev {name} {f'master {bridge} ' if bridge else ''}alias {alias} addrgenmode none up"


def _tbf(device: str, rate: int, burst: int, verb: str = "add") -> str:
    return f"qdisc {verb} dev {device} root handle 1: tbf rate {rate}bit burst {burst} limit {QUEUE_BYTES}"
