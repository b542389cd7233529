"""Namespaces of Linux, held by file descriptors: nothing is mounted for them, so none outlives those who hold it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_NET = "/proc/self/ns/net"
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40


def unshare(kinds: int) -> None:
    """Leave the namespaces of these kinds for new ones. Raises OSError."""
    _call("unshare", kinds)


def create() -> int:
    """A new network namespace, by its descriptor; this process stays where it is. Raises OSError."""
    here = current()
    try:
        unshare(CLONE_NEWNET)
        made = current()
        enter(here)
    finally:
        os.close(here)
    return made


def current() -> int:
    """A descriptor of this process's network namespace."""
    return os.open(_NET, os.O_RDONLY | os.O_CLOEXEC)


def has_own_network(pid: int) -> bool:
    """Is a living process in another network namespace than this one?"""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat(_NET).st_ino
    except OSError:
        return False


def enter(fd: int) -> None:
    """Go into a network namespace. Raises OSError."""
    _call("setns", fd, CLONE_NEWNET)


@contextlib.contextmanager
def inside(fd: int) -> Iterator[None]:
    """In another network namespace for a while. For a process with one thread."""
    here = current()
    try:
        enter(fd)
        try:
            yield
        finally:
            enter(here)
    finally:
        os.close(here)


def name(fd: int) -> str:
    """``net:[4026532177]``: the same for all who are in it or hold it."""
    return os.readlink(f"/proc/self/fd/{fd}")


def held(pid: int, wanted: str) -> int:
    """A descriptor of the namespace of that name which a process holds; -1 where it holds none."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with contextlib.suppress(OSError):
                if os.readlink(path) == wanted:
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def of(pid: int) -> int:
    """A descriptor of the network namespace that a process is in. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def has_carrier(interface: str) -> bool:
    """Is it up, and is what it is connected to? Raises OSError where there is no such interface here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH14x", interface.encode(), 0))
    return bool(struct.unpack("16sH14x", answer)[1] & _IFF_RUNNING)


def settle(hostname: str, hosts: str) -> None:
    """In new namespaces for mounts and names: an own host name, and ``hosts`` instead of /etc/hosts. Raises OSError."""
    _call("sethostname", hostname.encode(), len(hostname.encode()))
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    _call("mount", hosts.encode(), b"/etc/hosts", None, _MS_BIND, None)


def _call(function: str, *arguments: int | bytes | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_ulong(one) if function == "mount" and isinstance(one, int) else one for one in arguments]
    if getattr(libc, function)(*given):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
