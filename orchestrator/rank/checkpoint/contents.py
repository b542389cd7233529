"""What a commit puts in its place: the one file of a checkpoint, or the directory that every rank has written a file into."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...model import manifest


class Body(Protocol):
    """``since``: when its first byte was written (CLOCK_MONOTONIC, s); None: nothing is written yet."""

    @property
    def since(self) -> float | None: ...

    def path(self, directory: Path, name: str) -> Path:
        """Where it will be."""
        ...

    def place(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        """Put it there whole; what the manifest says of it. Raises OSError, and leaves nothing half-written then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The state of all ranks as rank 0 gathered it: ``<name>.pt``."""

    data: bytes
    since: float | None = None

    def path(self, directory: Path, name: str) -> Path:
        return directory / f"{name}.pt"

    def place(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        path = self.path(directory, name)
        write(path, self.data, before_rename)
        return {"file": path.name, "sha256": hashlib.sha256(self.data).hexdigest(), "bytes": len(self.data)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Files that the ranks have written and synced in ``unfinished(name)``, as they tell them: the directory ``<name>``."""

    files: manifest.Files
    since: float | None = None

    def path(self, directory: Path, name: str) -> Path:
        return directory / name

    def place(self, directory: Path, name: str, before_rename: Callable[[], None]) -> dict[str, Any]:
        path, source = self.path(directory, name), unfinished(directory, name)
        try:
            self._look(source)
            sync(source)
            before_rename()
            os.replace(source, path)
        except BaseException:
            remove(source)
            raise
        sha256, size = manifest.joint(self.files), manifest.total(self.files)
        return {"file": path.name, "files": dict(self.files), "sha256": sha256, "bytes": size}

    def _look(self, source: Path) -> None:
        """Every rank's file must be there as rank 0 sees the directory: it is shared, or there is no checkpoint."""
        for name, told in self.files.items():
            size = (source / name).stat().st_size
            if size != told["bytes"]:
                raise OSError(errno.EIO, f"{name} has {size} bytes here, its rank wrote {told['bytes']}")


def unfinished(directory: Path, name: str) -> Path:
    """Where the ranks write the files of a checkpoint until it is committed."""
    return directory / f".{name}.tmp"


def write(path: Path, data: bytes, before_rename: Callable[[], None] = lambda: None) -> None:
    """A file with ``data``, by temp, fsync and rename."""
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
    """A file, or a directory with all that is in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # a rank of an epoch that is over may still be writing into it
    else:
        path.unlink(missing_ok=True)


def sync(directory: Path) -> None:
    """The names in a directory are on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
