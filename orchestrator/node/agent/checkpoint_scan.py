"""The agent's view of checkpoints: the fence that stops old attempts from committing, and the newest valid checkpoint."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model import manifest as manifests
from ...model.events.checkpoint_events import CheckpointFacts, SkippedCheckpoint
from ...model.events.commands import CheckpointScanDone
from ...system import plain_files

_NAME = re.compile(r"^\.?(e(\d+)-s(\d+))\b(.*)$")

Beat = Callable[[], None]
Lineage = Iterable[tuple[int, int]]


def write_fence(directory: Path, epoch: int, *, fresh: bool = True) -> None:
    """Forbid epochs below ``epoch`` to commit. Raises ValueError if the fence is at a later epoch.

    The directory is made only for a ``fresh`` run: later, a missing directory means that the share is away.
    """
    if fresh:
        directory.mkdir(parents=True, exist_ok=True)
    present = read_fence(directory)
    if present is not None and present > epoch:
        raise ValueError(f"the fence in {directory} is at epoch {present}")
    plain_files.replace_file(directory / manifests.FENCE, json.dumps({"epoch": epoch}).encode(), durable=True)
    plain_files.sync(directory)


def read_fence(directory: Path) -> int | None:
    """The oldest epoch that may commit; None if there is no fence. Raises ValueError if the fence is damaged."""
    path = directory / manifests.FENCE
    return manifests.fenced_attempt(plain_files.read_file(path), str(path)) if path.exists() else None


def require_fence(directory: Path, epoch: int) -> None:
    """Raises OSError unless the fence stops all attempts before ``epoch``: they could commit a newer checkpoint."""
    os.stat(directory)
    present = read_fence(directory)
    if present is None or present < epoch:
        raise OSError(
            errno.EAGAIN,
            f"the fence is at epoch {present}, and epoch {epoch} searches",
            str(directory / manifests.FENCE),
        )


def find_newest(
    directory: Path, lineage: Lineage, beat: Beat = lambda: None, *, unreadable_is_damaged: bool = True
) -> CheckpointScanDone:
    """The newest valid checkpoint, and the damaged and half-written ones that are newer.

    A checkpoint of epoch e counts only if every later epoch kept its step (``lineage``: epoch, resume step).
    ``beat`` is called between blocks, so that the agent sends heartbeats while it hashes large files.
    Raises OSError if the directory is away, and, unless ``unreadable_is_damaged``, if a file cannot be read.
    """
    skipped: list[SkippedCheckpoint] = []
    resumes = [(int(epoch), int(step)) for epoch, step in lineage]
    for (epoch, step), name in _candidates(directory):
        if not is_in_lineage(epoch, step, resumes):
            continue
        try:
            manifest, problem = _examine(directory, name, epoch, step, beat)
        except OSError as error:
            if not unreadable_is_damaged:
                raise
            manifest, problem = {}, f"not readable: {error}"
        if not problem:
            return CheckpointScanDone(newest=CheckpointFacts.read(manifest), skipped=tuple(skipped))
        skipped.append(SkippedCheckpoint(name=name, reason=problem))
        os.stat(directory)  # raises if the share went away: its checkpoints are not damaged then
    return CheckpointScanDone(newest=None, skipped=tuple(skipped))


def is_in_lineage(epoch: int, step: int, lineage: Lineage) -> bool:
    """Did every later epoch resume at or after ``step`` of ``epoch``?"""
    return all(step <= resumed for later, resumed in lineage if later > epoch)


def _candidates(directory: Path) -> Iterator[tuple[tuple[int, int], str]]:
    """((epoch, step), name) of every file that is named like a checkpoint, newest first."""
    ages = {match[1]: (int(match[2]), int(match[3])) for match in map(_NAME.match, os.listdir(directory)) if match}
    yield from sorted(((age, name) for name, age in ages.items()), reverse=True)


def _examine(directory: Path, name: str, epoch: int, step: int, beat: Beat) -> tuple[Mapping[str, Any], str]:
    """(manifest, problem of the checkpoint; empty if it is valid)."""
    try:
        manifest = json.loads(plain_files.read_file(directory / f"{name}.json"))
        problem = _damage(manifest, directory, epoch, step, beat)
    except FileNotFoundError as error:
        return {}, f"half-written: no {Path(error.filename).name}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"manifest not readable: {error}"
    return manifest, problem


def _damage(manifest: Mapping[str, Any], directory: Path, epoch: int, step: int, beat: Beat) -> str:
    if (manifest["epoch"], manifest["step"]) != (epoch, step):
        return f"manifest is of epoch {manifest['epoch']}, step {manifest['step']}"
    sharded, name = "files" in manifest, f"e{epoch}-s{step}"
    file = directory / (name if sharded else f"{name}.pt")
    if manifest["file"] != file.name:
        return f"manifest is of {manifest['file']}"
    return (_damaged_shard if sharded else _difference)(file, manifest, beat)


def _damaged_shard(directory: Path, manifest: Mapping[str, Any], beat: Beat) -> str:
    """The first shard that differs from its manifest, with the difference; empty if none does."""
    files: manifests.Files = manifest["files"]
    if manifests.joint(files) != manifest["sha256"]:
        return "manifest's files are not those of its sha256"
    if directory.is_symlink():
        return f"{directory.name} is a link"
    problems = ((name, _difference(directory / name, entry, beat)) for name, entry in sorted(files.items()))
    return next((f"{name}: {problem}" for name, problem in problems if problem), "")


def _difference(file: Path, entry: Mapping[str, Any], beat: Beat) -> str:
    size = file.stat().st_size
    if size != entry["bytes"]:
        return f"size {size}, manifest says {entry['bytes']}"
    digest = plain_files.sha256(file, beat)
    return "" if digest == entry["sha256"] else f"sha256 {digest[:12]}, manifest says {entry['sha256'][:12]}"
