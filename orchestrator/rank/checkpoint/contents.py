"""The content of a checkpoint, a single file or a directory with a file of every rank, and its commit. Standard library only.

It is committed to the shared directory whole and behind the fence of the attempt, or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
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


#: Names of a checkpoint: its single file, or the directory of all ranks' files (no suffix), and its manifest.
NAME = re.compile(r"^\.?e(\d+)-s(\d+)(\.pt|\.json|)(\.tmp)?$")


class Refused(Exception):
    """The fence belongs to a later attempt: this gang has been replaced and may not commit."""

    #: Reported by the event checkpoint.refused, not as an error of the rank.
    silent = True

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(f"{name}: a later start of the job ({fence}) has begun")
        self.name, self.fence = name, fence


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identifies a checkpoint. ``parent``: the name of the previous checkpoint of its lineage, None for the first."""

    epoch: int
    step: int
    world: int
    parent: str | None

    @property
    def name(self) -> str:
        return f"e{self.epoch}-s{self.step}"


def commit(
    directory: Path, identity: Identity, content: Body, *, keep: int, before_rename: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Write ``content`` and then its manifest, each by temporary file, fsync and rename; return the manifest.

    Raises Refused if ``fence.json`` names a later attempt, OSError if writing fails, ValueError if the fence cannot be read.
    In all three cases nothing of the checkpoint remains.
    """
    begin = content.since or time.monotonic()
    try:
        facts = _facts(identity, content.store(directory, identity.name, before_rename))
        check_fence(directory, identity)
        write(directory / f"{identity.name}.json", json.dumps(facts, indent=1).encode() + b"\n")
        sync(directory)
    except BaseException:
        remove(content.path(directory, identity.name))
        raise
    if (
        fence(directory) == identity.epoch
    ):  # an attempt that has been replaced must not delete the checkpoint that is resumed from
        prune(directory, epoch=identity.epoch, keep=keep)
    return {**facts, "write_s": round(time.monotonic() - begin, 6)}


def check_fence(directory: Path, identity: Identity) -> None:
    """Raises Refused if a later attempt has begun, OSError or ValueError if the fence cannot be read."""
    current = fence(directory)
    if current > identity.epoch:
        raise Refused(identity.name, current)


def fence(directory: Path) -> int:
    """The attempt that may commit. Raises OSError or ValueError if the fence cannot be read."""
    path = directory / manifest.FENCE
    return manifest.fenced_attempt(path.read_bytes(), str(path))


def prune(directory: Path, *, epoch: int, keep: int) -> None:
    """Delete all but the newest ``keep`` committed checkpoints, and unfinished files of earlier attempts."""
    entries = [(path, match) for path in directory.iterdir() if (match := NAME.match(path.name))]
    committed = sorted({_age(match) for _, match in entries if match[3] == ".json" and not match[4]})
    oldest = committed[-keep:][0] if committed else (0, 0)
    for path, match in sorted(entries, key=lambda entry: entry[1][3] != ".json"):  # a manifest before its files
        if _age(match) < oldest or (match[4] and int(match[1]) < epoch):
            remove(path)


def _age(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def _facts(identity: Identity, stored: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": identity.name,
        "step": identity.step,
        "epoch": identity.epoch,
        "parent": identity.parent,
        "world": identity.world,
        **stored,
    }
