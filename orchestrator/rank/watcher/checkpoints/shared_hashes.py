"""SHA-256 of files that several nodes see: each node computes those of its share, and finds the others in a file of the run.

The file is in the run's directory for checkpoints. Whether nodes share files shows in it; until then, and where a share is not
done in time, because its node was lost, a node computes all of them itself. So no hash is missing that it would have without the file.
"""

from __future__ import annotations

import functools
import os
import zlib

from . import file_hashes

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
        """How long to wait before this node computes the hash of a file: not at all for those of its share."""
        is_own = zlib.crc32(os.fsencode(path)) % self._nodes == self._node
        return 0.0 if is_own or not self._is_shared else WAIT_S

    def sha256(self, file: file_hashes.Unchanged) -> str | None:
        """The hash of the file as it was when it was reported; None if it has changed."""
        key = f"{file.expected} {file.path}"
        self._read()
        known = self._known.get(key)
        if known is not None and file_hashes.stamp(file.path) == file.expected:
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
