"""Linux namespaces held by file descriptors and processes: a namespace ends with its last holder."""

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
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_NET = "/proc/self/ns/net"
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40


def unshare(kinds: int) -> None:
    """Move this process into new namespaces of these kinds. Raises OSError."""
    call("unshare", kinds)


def create() -> int:
    """Create a network namespace; its descriptor. This process stays in its own. Raises OSError."""
    own = open_current()
    try:
        unshare(CLONE_NEWNET)
        created = open_current()
        enter(own)
    finally:
        os.close(own)
    return created


def open_current() -> int:
    """Open the network namespace of this process; its descriptor."""
    return os.open(_NET, os.O_RDONLY | os.O_CLOEXEC)


def has_own_network(pid: int) -> bool:
    """Is a living process in another network namespace than this one?"""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat(_NET).st_ino
    except OSError:
        return False


def enter(fd: int) -> None:
    """Move this process into a network namespace. Raises OSError."""
    call("setns", fd, CLONE_NEWNET)


@contextlib.contextmanager
def entered(fd: int) -> Iterator[None]:
    """Run the body of a ``with`` in another network namespace. For a process with one thread. Raises OSError."""
    own = open_current()
    try:
        enter(fd)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)


def namespace_name(fd: int) -> str:
    """The kernel's name of a namespace, such as ``net:[4026532177]``."""
    return os.readlink(f"/proc/self/fd/{fd}")


def open_held(pid: int, wanted: str) -> int:
    """Open the namespace of this name that a process holds; -1 if it holds none."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with contextlib.suppress(OSError):
                if os.readlink(path) == wanted:
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def open_of_process(pid: int) -> int:
    """Open the network namespace of a process; its descriptor. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def has_carrier(interface: str) -> bool:
    """Are an interface and its peer up? Raises OSError if this namespace has no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        reply = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH14x", interface.encode(), 0))
    return bool(struct.unpack("16sH14x", reply)[1] & _IFF_RUNNING)


def set_host_name_and_hosts(hostname: str, hosts: str) -> None:
    """Set the host name, and mount ``hosts`` over /etc/hosts, in new mount and UTS namespaces. Raises OSError."""
    call("sethostname", hostname.encode(), len(hostname.encode()))
    mount("none", "/", None, _MS_REC | _MS_SLAVE)
    mount(hosts, "/etc/hosts", None, _MS_BIND)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """``mount(2)``. Raises OSError."""
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode() or None)


def call(function: str, *arguments: int | bytes | None) -> None:
    """Call a function of libc. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_ulong(item) if function == "mount" and isinstance(item, int) else item for item in arguments]
    if getattr(libc, function)(*converted):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
