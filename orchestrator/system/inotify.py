"""Reports at once that a file arrived or grew in a directory: inotify through ctypes, and the older dnotify, which sends a signal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

MODIFY = 0x2
MOVED_TO = 0x80
CREATE = 0x100
_OVERFLOW = 0x4000
_IGNORED = 0x8000

#: The signal of dnotify; by default it ends a process that has no handler.
SIGNAL = signal.SIGIO
#: What dnotify reports: a file came into the directory; one of its files was written.
ARRIVAL = fcntl.DN_CREATE | fcntl.DN_RENAME
WRITE = fcntl.DN_MODIFY

_HEADER = struct.Struct("iIII")


class Watcher:
    """One inotify descriptor. If the kernel's limits are reached, ``add_watch`` returns False and the caller must poll."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[str, int] = {}

    def add_watch(self, path: str, mask: int) -> bool:
        """Watch a directory or file; whether the kernel accepted it. Idempotent."""
        if self.fd < 0:
            return False
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if number >= 0:
            self._paths[path] = number
        return bool(number >= 0)

    def read_names(self) -> list[str]:
        """The names that were reported since the last call, in order, without their directories."""
        return [name for _, _, name in self._events() if name]

    def read_changes(self) -> tuple[set[tuple[str, str]], bool]:
        """(watched path, name in it) of each report since the last call, and whether reports were lost."""
        paths = {number: path for path, number in self._paths.items()}
        changes: set[tuple[str, str]] = set()
        is_incomplete = False
        for number, mask, name in self._events():
            is_incomplete = is_incomplete or bool(mask & _OVERFLOW)
            if mask & _IGNORED:
                self._paths.pop(paths.pop(number, ""), None)
            elif number in paths:
                changes.add((paths[number], name))
        return changes, is_incomplete

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while data := self._read():
            offset = 0
            while offset < len(data):
                number, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                yield number, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length

    def close(self) -> None:
        """The kernel takes a while to end the watches: the number is forgotten first, since another file may get it meanwhile."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, 1 << 16) if self.fd >= 0 else b""
        except BlockingIOError:
            return b""


def send_signal(directory: Path, changes: int) -> bool:
    """Send ``SIGNAL`` to this process after these changes, as long as it lives; whether the kernel can, and the directory is there.

    This takes no inotify instance, of which a user has 128.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_NOTIFY, changes | fcntl.DN_MULTISHOT)
    except OSError:
        os.close(fd)
        return False
    return True
