"""The address of this node on the network of the gang."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_NAME = 15


def of(interface: str, master: tuple[str, int]) -> str:
    """The IPv4 address of ``interface``; where it is not known, the one from which ``master`` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        if interface:
            try:
                asked = struct.pack("256s", interface[:_NAME].encode())
                return socket.inet_ntoa(fcntl.ioctl(one, _SIOCGIFADDR, asked)[20:24])
            except OSError:
                pass  # several may be named, or it has an IPv6 address only
        one.connect(master)
        return str(one.getsockname()[0])
