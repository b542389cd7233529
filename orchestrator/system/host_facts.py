"""Facts of the host that this process runs on: boot id, machine id, its shell, interfaces, routes."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_SIOCGIFCONF = 0x8912
#: The size of ``struct ifreq`` on 64-bit machines.
_IFREQ = 40
#: Flags of IPv6 addresses: IFA_F_DADFAILED and IFA_F_TENTATIVE; IFA_F_TEMPORARY and IFA_F_DEPRECATED.
_UNUSABLE, _PASSING = 0x08 | 0x40, 0x01 | 0x20


def boot_id() -> str:
    """The random id that the kernel draws at each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_id() -> str:
    """The id of this installation, which stays the same over boots; empty if it has none."""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""


def ancestors() -> tuple[str, ...]:
    """This process and its ancestors, each ``pid:start``, up to what starts other shells too: a daemon, or a terminal's program.

    That is a process of another session without a terminal. sudo with a terminal of its own has its caller's as well. In a
    session of its own, as under setsid, this process still has its caller.
    """
    pid, start, ppid, session, _ = _process(os.getpid())
    chain, is_leader = [f"{pid}:{start}"], pid == session
    with suppress(OSError):  # the first process has no parent
        while parent := _process(ppid):
            if parent[3] != session and not parent[4] and not (is_leader and parent[2] > 1):
                break
            is_leader, (pid, start, ppid, session, _) = False, parent
            chain.append(f"{pid}:{start}")
    return tuple(chain)


def _process(pid: int) -> tuple[int, int, int, int, int]:
    """Its pid, start time, parent, session and terminal (0: none). Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return pid, int(fields[19]), int(fields[1]), int(fields[3]), int(fields[4])


def directory_identity(path: str) -> str:
    """Identify a directory by boot, device and inode, however it was reached; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{boot_id()}:{status.st_dev}:{status.st_ino}"


def interfaces() -> dict[str, list[str]]:
    """The addresses of each interface, IPv4 before IPv6, without those that are valid on one link only.

    The interface of the default route comes first, the loopback last.
    """
    addresses: dict[str, list[str]] = {}
    for name, address in (*_ipv4_addresses(), *_ipv6_addresses()):
        addresses.setdefault(name, []).append(address)
    routes = (*(fields[0] for fields in _route_table() if fields[1] == "00000000"), *_ipv6_default_routes())
    ranks = {name: rank for rank, name in reversed(list(enumerate(routes)))}
    first = len(ranks) + 1
    return {
        name: addresses[name] for name in sorted(addresses, key=lambda name: (name == "lo", ranks.get(name, first)))
    }


def _ipv4_addresses() -> list[tuple[str, str]]:
    """All addresses, also secondary ones. An alias such as ``eth0:1`` is of its interface."""
    size = 1024 * _IFREQ
    buffer = array.array("B", bytes(size))
    request = struct.pack("iP", size, buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        filled = struct.unpack("iP", fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
    rows = (buffer[start : start + _IFREQ].tobytes() for start in range(0, filled, _IFREQ))
    return [(row[:16].split(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(row[20:24])) for row in rows]


def _ipv6_addresses() -> list[tuple[str, str]]:
    """Addresses of global scope, and the loopback's; tentative and failed ones do not count, temporary and old ones come last."""
    rows = [line.split() for line in _lines("/proc/net/if_inet6")]
    rows.sort(key=lambda row: int(row[4], 16) & _PASSING != 0)
    return [
        (row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])))
        for row in rows
        if row[3] in ("00", "10") and not int(row[4], 16) & _UNUSABLE
    ]


def _ipv6_default_routes() -> list[str]:
    rows = [line.split() for line in _lines("/proc/net/ipv6_route")]
    routes = [(int(row[5], 16), row[9]) for row in rows if row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"]
    return [name for _, name in sorted(routes)]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def ipv4_routes() -> list[str]:
    """The IPv4 networks that this host has routes to, as ``10.0.0.0/8``, without the default route."""
    networks = []
    for fields in _route_table():
        network, mask = int(fields[1], 16), int(fields[7], 16)
        if mask:
            address = socket.inet_ntoa(network.to_bytes(4, "little"))
            networks.append(f"{address}/{mask.bit_count()}")
    return networks


def _route_table() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
