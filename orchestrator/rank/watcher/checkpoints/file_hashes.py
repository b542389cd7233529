"""SHA-256 of files, computed in a thread of low priority: never in a step's path."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable

CHUNK = 1 << 20
#: Nice value of the thread.
NICE = 19


def stamp(path: str) -> tuple[int, int, int] | None:
    """Inode, size and modification time of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def hash_file(path: str) -> str:
    """SHA-256 of a file. Raises OSError."""
    sha = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with open(path, "rb", buffering=0) as source:
        while size := source.readinto(buffer):
            sha.update(buffer[:size])
    return sha.hexdigest()


def hash_unchanged(path: str, expected: tuple[int, int, int] | None) -> str | None:
    """SHA-256 of the file that had this stamp; None if it was replaced, changed or deleted before its last byte was read."""
    if expected is None or stamp(path) != expected:
        return None
    try:
        digest = hash_file(path)
    except OSError:
        return None
    return digest if stamp(path) == expected else None


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
