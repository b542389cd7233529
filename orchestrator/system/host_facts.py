"""Facts of the host that this process runs on: boot id, machine id, interfaces, routes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def boot_id() -> str:
    """The random id that the kernel draws at each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_id() -> str:
    """The id of this installation, which stays the same over boots; empty if it has none."""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""


def directory_identity(path: str) -> str:
    """Identify a directory by boot, device and inode, however it was reached; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{boot_id()}:{status.st_dev}:{status.st_ino}"


def interfaces() -> dict[str, str]:
    """The IPv4 address of each interface that has one; the interface of the default route comes first."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            addresses[name] = socket.inet_ntoa(reply[20:24])
    default = next((fields[0] for fields in _route_table() if fields[1] == "00000000"), "")
    return {name: addresses[name] for name in sorted(addresses, key=lambda name: name != default)}


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
