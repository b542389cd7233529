"""Durable writes: steps as data, in an order in which every prefix survives a crash of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..model.frozen import dataclass
from ..system import plain_files
from . import paths


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory:
    """Create a directory; if ``new``, it must not exist yet."""

    path: Path
    new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write a file atomically; its content is on the disk before its name."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDirectory:
    """Force the names in a directory to the disk."""

    path: Path


Step = MakeDirectory | WriteFile | SyncDirectory


def tree(root: Path, files: Mapping[str, bytes]) -> tuple[Step, ...]:
    """Write ``files`` (relative path -> content) below ``root``, which exists; every name is durable at the end."""
    folders = {parent for name in files for parent in (root / name).parents if root in parent.parents}
    ordered = sorted(folders)
    return (
        *(MakeDirectory(path=folder) for folder in ordered),
        *(WriteFile(path=root / name, content=content) for name, content in files.items()),
        *(SyncDirectory(path=folder) for folder in (*reversed(ordered), root)),
    )


def file(path: Path, content: bytes) -> tuple[Step, ...]:
    """Replace a file; its name is durable at the end."""
    return WriteFile(path=path, content=content), SyncDirectory(path=path.parent)


def perform(steps: Iterable[Step]) -> None:
    """Execute ``steps`` in order. Raises OSError."""
    for step in steps:
        perform_step(step)


def perform_step(step: Step) -> None:
    """Execute a step. Raises OSError."""
    match step:
        case MakeDirectory():
            step.path.mkdir(mode=0o700, exist_ok=not step.new)
        case WriteFile():
            paths.write(step.path, step.content, durable=True)
        case SyncDirectory():
            plain_files.sync(step.path)
