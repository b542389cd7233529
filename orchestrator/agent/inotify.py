"""Inotify by ctypes: learn at once that a file arrived in or grew within a directory."""

from __future__ import annotations

import ctypes
import os
import struct

MODIFY = 0x2
MOVED_TO = 0x80
CREATE = 0x100

_HEADER = struct.Struct("iIII")


class Watcher:
    """One inotify descriptor. Where the kernel refuses (its limits), ``watch`` says False and slow polls must do."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[str, int] = {}

    def watch(self, path: str, mask: int) -> bool:
        """Watch a directory or file; a second time is harmless."""
        if self.fd < 0:
            return False
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if number >= 0:
            self._paths[path] = number
        return bool(number >= 0)

    def drain(self) -> list[str]:
        """The names that were reported since the last call, in order (without their directories)."""
        names: list[str] = []
        while data := self._read():
            offset = 0
            while offset < len(data):
                _, _, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                names.append(os.fsdecode(data[offset : offset + length].rstrip(b"\0")))
                offset += length
        return [name for name in names if name]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, 1 << 16) if self.fd >= 0 else b""
        except BlockingIOError:
            return b""
