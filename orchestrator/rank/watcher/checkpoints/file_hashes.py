"""SHA-256 of files, computed in a thread of low priority: never in a step's path; shared by the nodes that see the same files.

Each node computes the hashes of its share, and finds the others in a file in the run's directory for checkpoints. Whether nodes share
files shows in it; until then, and where a share is not done in time, because its node was lost, a node computes all of them itself. So
no hash is missing that it would have without the file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable

CHUNK = 1 << 20
#: Seconds after which the thread looks whether another job is due.
POLL_S = 0.1
#: Nice value of the thread.
NICE = 19
#: Files that wait for their hash are open, at most so many: the limit of open files is that of the user's process.
MAX_OPEN = 32
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
    """Return whether the file system may keep a deleted file that is open in its directory, as NFS does; True if that is not known."""
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


#: The identities of the files that are open.
_open: set[int] = set()


class Unchanged:
    """A file that is hashed now or later. On a local file system it is opened now, so another file may take its name by then.

    On a network file system, and if many wait, it is open only while a chunk is read: a directory with a deleted file that is open
    cannot be removed.
    """

    def __init__(self, path: str, expected: tuple[int, int, int] | None) -> None:
        self.path, self.expected = path, expected
        self._file: io.FileIO | None = None
        self._is_closed_between = len(_open) >= MAX_OPEN or is_on_network(path)
        if not self._is_closed_between:
            with contextlib.suppress(OSError):
                self._file = open(path, "rb", buffering=0)  # noqa: SIM115 it is closed once it is hashed
                _open.add(id(self))

    def sha256(self) -> str | None:
        """None unless the file had the expected stamp when its first byte and when its last byte was read. Closes the file."""
        if self._is_closed_between:
            return self._sha256_by_chunks()
        if self._file is None:
            return None
        try:
            digest = _hash(self._file) if self._is_expected(self._file) else None
            return digest if self._is_expected(self._file) else None
        except OSError:
            return None
        finally:
            self.close()

    def close(self) -> None:
        """It is not hashed, or is hashed."""
        _open.discard(id(self))
        if self._file is not None:
            self._file.close()

    def _sha256_by_chunks(self) -> str | None:
        sha, offset = hashlib.sha256(), 0
        with contextlib.suppress(OSError):
            while self.expected is not None and stamp(self.path) == self.expected:
                if offset >= self.expected[1]:
                    return sha.hexdigest()
                with open(self.path, "rb", buffering=0) as source:
                    source.seek(offset)
                    chunk = source.read(CHUNK)
                sha.update(chunk)
                offset += len(chunk)
        return None

    def _is_expected(self, source: io.FileIO) -> bool:
        return _stamp_of(os.fstat(source.fileno())) == self.expected


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
        #: (when it is due, its number, job).
        self._jobs: queue.PriorityQueue[tuple[float, int, Callable[[], None]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._pending = 0
        self._idle, self._hurry = threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None], delay_s: float = 0.0) -> None:
        """Run ``job`` later, after ``delay_s`` or with ``drain``. What it raises is dropped."""
        with self._lock:
            self._pending += 1
            self._idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ccbed-watch-hashes", daemon=True)
                self._thread.start()
        self._jobs.put((time.monotonic() + delay_s, next(self._numbers), job))

    def drain(self, timeout_s: float) -> bool:
        """Wait for the jobs, also for those that are not due; whether all have ended."""
        self._hurry.set()
        is_idle = self._idle.wait(timeout_s)
        self._hurry.clear()
        return is_idle

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            due, number, job = self._jobs.get()
            wait_s = due - time.monotonic()
            if wait_s > 0 and not self._hurry.wait(min(wait_s, POLL_S)):
                self._jobs.put((due, number, job))  # meanwhile another one may be due
                continue
            with contextlib.suppress(Exception):
                job()
            with self._lock:
                self._pending -= 1
                if not self._pending:
                    self._idle.set()


#: Seconds for which a node waits for the hashes of another one.
WAIT_S = 1.0


class SharedHashes:
    """The hashes of files that any node of this attempt has computed."""

    def __init__(self) -> None:
        folder, attempt = os.environ.get("CCBED_CHECKPOINTS"), os.environ.get("CCBED_EPOCH")
        self._path = f"{folder}/sums-e{attempt}" if folder and attempt else ""
        local = max(1, _number("LOCAL_WORLD_SIZE", 1))
        self._node, self._nodes = _number("RANK", 0) // local, max(1, _number("WORLD_SIZE", 1) // local)
        self._known: dict[str, str] = {}
        self._own: set[str] = set()
        self._offset = 0
        self._is_shared = False

    def delay_s(self, path: str) -> float:
        """Return how long to wait before this node computes the hash of a file: not at all for those of its share."""
        is_own = zlib.crc32(os.fsencode(path)) % self._nodes == self._node
        return 0.0 if is_own or not self._is_shared else WAIT_S

    def sha256(self, file: Unchanged) -> str | None:
        """The hash of the file as it was when it was reported; None if it has changed."""
        key = f"{file.expected} {file.path}"
        self._read()
        known = self._known.get(key)
        if known is not None and stamp(file.path) == file.expected:
            file.close()
            return known
        computed = file.sha256()
        if computed is not None:
            self._publish(key, computed)
        return computed

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as source:
                source.seek(self._offset)
                whole = source.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._offset += len(whole) + 1 if whole else 0
        for line in whole.split(b"\n"):
            node, _, rest = line.decode(errors="surrogateescape").partition(" ")
            value, _, key = rest.partition(" ")
            if node != str(self._node) and len(value) == 64:
                self._known[key] = value
                self._is_shared = self._is_shared or key in self._own

    def _publish(self, key: str, value: str) -> None:
        self._own.add(key)
        self._is_shared = self._is_shared or key in self._known
        if not self._path or "\n" in key:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, f"{self._node} {value} {key}\n".encode(errors="surrogateescape"))
            finally:
                os.close(fd)
        except OSError:
            self._path = ""


@functools.cache
def of_process() -> SharedHashes:
    """Those of this process, by its environment as it reports its first file."""
    return SharedHashes()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default
