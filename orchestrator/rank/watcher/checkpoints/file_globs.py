"""Checkpoint files of other writers, by ``CCBED_CHECKPOINT_GLOBS``: reported when they are closed or renamed, by inotify.

Where no inotify instance is left (a user has 128), the files are searched twice a second: one that has changed is complete
once this process has not written to it for ``POLL_S``, and has closed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import fnmatch
import glob
import os
import select
import struct
import threading
import time
from collections.abc import Iterator

from .. import record
from . import file_hashes, saves

_CLOSE_WRITE, _MOVED_TO, _CREATE = 0x8, 0x80, 0x100
_MASK = _CLOSE_WRITE | _MOVED_TO | _CREATE
_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")
#: Directories below a pattern that are watched at most.
MAX_DIRECTORIES = 1000
#: Seconds between two searches where inotify is not available, which is recorded with this reason.
POLL_S = 0.5
NO_INOTIFY = "no inotify instance is left (fs.inotify.max_user_instances): files are searched twice a second"
#: After so many changes at once the next ones wait for ``POLL_S``: the process may be writing thousands of files.
MANY = 16


def patterns() -> list[str]:
    """The absolute patterns of this process; only the first rank of a node watches."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return []
    listed = os.environ.get("CCBED_CHECKPOINT_GLOBS", "").split(os.pathsep)
    return [os.path.abspath(os.path.expanduser(pattern)) for pattern in listed if pattern]


@record.guarded("files")
def install() -> None:
    """Watch the patterns, if there are any, in a thread that ends with the process."""
    if patterns():
        watcher = GlobWatcher(patterns())
        threading.Thread(target=watcher.run, name="ccbed-watch-files", daemon=True).start()


class GlobWatcher:
    """Watches the directories in which files of the patterns can arise, also those that do not exist yet."""

    def __init__(self, listed: list[str]) -> None:
        self._patterns = listed
        self._directories: dict[int, str] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stamps = {path: file_hashes.stamp(path) for path in self._matches()}
        self._pid = os.getpid()
        self.add_directories()

    def run(self) -> None:
        """Report files until the process ends."""
        while os.getpid() == self._pid:
            if (self.wait(POLL_S) or 0) > MANY:
                time.sleep(POLL_S)

    @record.guarded("files")
    def wait(self, timeout_s: float) -> int:
        """Wait for changes, and report the files that are complete. Returns how many changes there were."""
        if self.fd < 0:
            record.unknown("files", NO_INOTIFY)
            time.sleep(timeout_s)
            self._search()
            return 0
        count = 0
        if select.select([self.fd], [], [], timeout_s)[0]:
            for mask, path in self._events():
                count += 1
                if mask & _OVERFLOW or mask & _CREATE:
                    self.add_directories()
                    self._search()
                if mask & (_CLOSE_WRITE | _MOVED_TO):
                    self._report(path, "rename" if mask & _MOVED_TO else "return")
        return count

    def add_directories(self) -> None:
        """Watch every directory that exists and can hold a file of a pattern, or a part of its path.

        The search is repeated until it finds no new one: a directory that arises before its parent is watched has no event.
        """
        watched: set[str] = set()
        while new := sorted({path for pattern in self._patterns for path in parents(pattern)} - watched)[
            :MAX_DIRECTORIES
        ]:
            watched.update(new)
            for directory in new:
                number = self._libc.inotify_add_watch(self.fd, os.fsencode(directory), _MASK)
                if number >= 0:
                    self._directories[number] = directory
            if len(watched) >= MAX_DIRECTORIES:
                break

    def _events(self) -> Iterator[tuple[int, str]]:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                offset = 0
                while offset < len(data):
                    number, mask, _, length = _HEADER.unpack_from(data, offset)
                    offset += _HEADER.size
                    name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                    offset += length
                    yield mask, os.path.join(self._directories.get(number, ""), name)

    def _matches(self) -> list[str]:
        return [
            path for pattern in self._patterns for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)
        ]

    def _search(self) -> None:
        """Report files without events: those that arose before their directory was watched, or all. Only closed ones count."""
        paths = [path for path in self._matches() if self.fd < 0 or path not in self._stamps]
        writing = _open_files() if paths else frozenset()
        for path in paths:
            status = os.stat(path)
            if time.time() - status.st_mtime > POLL_S and (status.st_dev, status.st_ino) not in writing:
                self._report(path, "return")

    def _report(self, path: str, how: str) -> None:
        stamp = file_hashes.stamp(path)
        if stamp is None or self._stamps.get(path) == stamp or not os.path.isfile(path):
            return
        if any(fnmatch.fnmatch(path, pattern) for pattern in self._patterns):
            self._stamps[path] = stamp
            saves.report_file(path, how)


def _open_files() -> frozenset[tuple[int, int]]:
    """Device and inode of each file that this process writes to."""
    known = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE:
                status = os.fstat(descriptor)
                known.add((status.st_dev, status.st_ino))
    return frozenset(known)


def parents(pattern: str) -> set[str]:
    """The existing directories above the files of a pattern: those without wildcards, and every match of those with them."""
    result: set[str] = set()
    parts = os.path.dirname(pattern).split(os.sep)
    for count in range(len(parts), 0, -1):
        prefix = os.sep.join(parts[:count]) or os.sep
        result.update(path for path in glob.glob(prefix, recursive=True) if os.path.isdir(path))
        if not glob.has_magic(prefix) and result:
            break
    return result
