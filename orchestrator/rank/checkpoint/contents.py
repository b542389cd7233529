"""The content of a checkpoint that is committed: a single file, or a directory with a file of every rank. Standard library only."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ...model import manifest
from ...model.frozen import dataclass


class Body(Protocol):
    """``since``: when the first byte was written (CLOCK_MONOTONIC, s); None: nothing is written yet."""

    @property
    def since(self) -> float | None: ...

    def path(self, directory: Path, name: str) -> Path:
        """The path after the commit."""
        ...

    def store(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        """Move the content to its path; return its entry of the manifest. Raises OSError; nothing remains then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The state of all ranks, gathered by rank 0: ``<name>.pt``."""

    data: bytes
    since: float | None = None

    def path(self, directory: Path, name: str) -> Path:
        return directory / f"{name}.pt"

    def store(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        path = self.path(directory, name)
        write(path, self.data, before_rename)
        return {"file": path.name, "sha256": hashlib.sha256(self.data).hexdigest(), "bytes": len(self.data)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Files that the ranks have written and synced in ``unfinished(name)``; committed as the directory ``<name>``."""

    files: manifest.Files
    since: float | None = None

    def path(self, directory: Path, name: str) -> Path:
        return directory / name

    def store(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        path, source = self.path(directory, name), unfinished(directory, name)
        try:
            self._check_sizes(source)
            sync(source)
            before_rename()
            os.replace(source, path)
        except BaseException:
            remove(source)
            raise
        sha256, size = manifest.joint(self.files), manifest.total(self.files)
        return {"file": path.name, "files": dict(self.files), "sha256": sha256, "bytes": size}

    def _check_sizes(self, source: Path) -> None:
        """Rank 0 must see every rank's file whole: otherwise the directory is not shared. Raises OSError."""
        for name, facts in self.files.items():
            size = (source / name).stat().st_size
            if size != facts["bytes"]:
                raise OSError(errno.EIO, f"{name} has {size} bytes here, its rank wrote {facts['bytes']}")


def unfinished(directory: Path, name: str) -> Path:
    """The directory into which the ranks write the files of a checkpoint until it is committed."""
    return directory / f".{name}.tmp"


def write(path: Path, data: bytes, before_rename: Callable[[], None] = lambda: None) -> None:
    """Write a file by temporary file, fsync and rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        before_rename()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove a file, or a directory with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # a rank of an earlier attempt may still write into it
    else:
        path.unlink(missing_ok=True)


def sync(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
