"""The mirror of remote nodes' files on this machine: the same bytes, written as they arrive."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...node.files.label import KEEPER_DIR
from ...node.hostlink import tails
from ...node.hostlink.tails import Tree
from ...system import plain_files

Have = dict[str, tuple[int, str]]


class Mirror:
    """The files of one host below ``root``: nodes/<n>/… as on the host, and its keeper's as keeper-<host>/…."""

    def __init__(self, root: Path, host: str) -> None:
        self.root = root
        self._keeper = f"{KEEPER_DIR}-{host}"
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Write nothing from now on, so that the files can be removed."""
        with self._lock:
            self._is_closed = True

    def path(self, name: str) -> Path:
        """The path of a host's file on this machine. Raises ValueError for a name that leaves the bed's directories."""
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] not in (KEEPER_DIR, "nodes"):
            raise ValueError(f"{name!r} is not a file of a bed")
        return self.root.joinpath(self._keeper if parts[0] == KEEPER_DIR else parts[0], *parts[1:])

    def have(self, trees: Iterable[Tree]) -> Have:
        """(size, hash of the end) of each mirrored file."""
        files: Have = {}
        for tree in trees:
            top = self.path(tree.path)
            for file in top.rglob("*") if tree.deep else top.glob("*"):
                if file.is_file() and not file.name.startswith("."):
                    files[f"{tree.path}/{file.relative_to(top).as_posix()}"] = self._end(file)
        return files

    def at(self, name: str) -> tuple[int, str]:
        """(size, hash of the end) of one file."""
        return self._end(self.path(name))

    def write(self, header: Mapping[str, Any], data: bytes) -> bool:
        """Append the bytes of a frame; False if they do not continue the mirrored file. Raises OSError if they cannot be written."""
        name, offset = str(header["file"]), int(header["at"])
        path = self.path(name)
        with self._lock:
            if self._is_closed:
                return True
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if offset == 0 and header.get("end") and name.endswith(tails.REPLACED):
                plain_files.replace_file(path, data)
                return True
            return _append(path, offset, data)

    def _end(self, path: Path) -> tuple[int, str]:
        try:
            size = path.stat().st_size
        except OSError:
            return -1, ""
        return size, tails.end_hash(str(path), size)


def _append(path: Path, offset: int, data: bytes) -> bool:
    """Append all bytes or none: a partial write is removed again."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if offset == 0 else 0), 0o600)
    try:
        if os.fstat(fd).st_size != offset:
            return False
        remaining, position = memoryview(data), offset
        try:
            while remaining:
                written = os.pwrite(fd, remaining, position)
                remaining, position = remaining[written:], position + written
        except OSError:
            os.ftruncate(fd, offset)
            raise
        return True
    finally:
        os.close(fd)
