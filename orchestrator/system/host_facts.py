"""Facts of the host that this process runs on: boot id, machine id, its shell, interfaces, routes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
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
