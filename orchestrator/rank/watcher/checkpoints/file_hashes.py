"""SHA-256 of files, computed in a thread of low priority: never in a step's path."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import queue
import threading
from collections.abc import Callable

CHUNK = 1 << 20
#: Nice value of the thread.
NICE = 19
#: File systems of one machine: they delete a file that is open.
LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay", "squashfs")
)


def stamp(path: str) -> tuple[int, int, int] | None:
    """Inode, size and modification time of a file; None if it does not exist."""
    try:
        return _stamp_of(os.stat(path))
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_on_network(path: str) -> bool:
    """Whether the file system may keep a deleted file that is open in its directory, as NFS does; True if that is not known."""
    try:
        return not _is_local(os.stat(path).st_dev)
    except OSError:
        return True


@functools.lru_cache
def _is_local(device: int) -> bool:
    """Raises OSError."""
    with open("/proc/self/mountinfo") as mounts:
        fields = [line.split() for line in mounts]
    number = f"{os.major(device)}:{os.minor(device)}"
    types = {line[line.index("-") + 1] for line in fields if line[2] == number}
    return bool(types) and types <= LOCAL


class Unchanged:
    """A file that is hashed now or later. On a local file system it is opened now, so another file may take its name by then.

    On a network file system it is open only while a chunk is read: a directory with a deleted file that is open cannot be removed.
    """

    def __init__(self, path: str, expected: tuple[int, int, int] | None) -> None:
        self._path, self._expected = path, expected
        self._file: io.FileIO | None = None
        self._is_remote = is_on_network(path)
        if not self._is_remote:
            with contextlib.suppress(OSError):
                self._file = open(path, "rb", buffering=0)  # noqa: SIM115 it is closed once it is hashed

    def sha256(self) -> str | None:
        """None unless the file had the expected stamp when its first byte and when its last byte was read. Closes the file."""
        if self._is_remote:
            return self._sha256_by_chunks()
        if self._file is None or self._expected is None:
            return None
        with self._file as source:
            try:
                digest = _hash(source) if self._is_expected(source) else None
                return digest if self._is_expected(source) else None
            except OSError:
                return None

    def _sha256_by_chunks(self) -> str | None:
        sha, offset = hashlib.sha256(), 0
        with contextlib.suppress(OSError):
            while self._expected is not None and stamp(self._path) == self._expected:
                if offset >= self._expected[1]:
                    return sha.hexdigest()
                with open(self._path, "rb", buffering=0) as source:
                    source.seek(offset)
                    chunk = source.read(CHUNK)
                sha.update(chunk)
                offset += len(chunk)
        return None

    def _is_expected(self, source: io.FileIO) -> bool:
        return _stamp_of(os.fstat(source.fileno())) == self._expected


def hash_unchanged(path: str, expected: tuple[int, int, int] | None) -> str | None:
    """SHA-256 of the file that had this stamp; None if it was replaced, changed or deleted before it was opened or read."""
    return Unchanged(path, expected).sha256()


def _hash(source: io.FileIO) -> str:
    sha = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    while size := source.readinto(buffer):
        sha.update(buffer[:size])
    return sha.hexdigest()


class HashThread:
    """Runs jobs one after another at low priority. The thread starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue()
        self._lock = threading.Lock()
        self._pending = 0
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` later. What it raises is dropped."""
        with self._lock:
            self._pending += 1
            self._idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ccbed-watch-hashes", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def drain(self, timeout_s: float) -> bool:
        """Wait for the jobs; whether all have ended."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            with contextlib.suppress(Exception):
                self._jobs.get()()
            with self._lock:
                self._pending -= 1
                if not self._pending:
                    self._idle.set()
