"""The agent's side of checkpoints: the fence that keeps old epochs from committing, and the newest valid one."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model import manifest as manifests
from ..files import plain_files

FENCE = "fence.json"
FIELDS = ("name", "file", "step", "epoch", "sha256", "parent", "bytes")
_NAME = re.compile(r"^\.?(e(\d+)-s(\d+))\b(.*)$")

Beat = Callable[[], None]
Lineage = Iterable[tuple[int, int]]


def write_fence(directory: Path, epoch: int, *, fresh: bool = True) -> None:
    """Let no epoch below ``epoch`` commit any more. Raises ValueError where the fence is already beyond.

    Only where the run is ``fresh`` the directory may be made: later, one that is missing is on a share that is away.
    """
    if fresh:
        directory.mkdir(parents=True, exist_ok=True)
    path, present = directory / FENCE, fence(directory)
    if present is not None and present > epoch:
        raise ValueError(f"the fence in {directory} is at epoch {present}")
    temporary = directory / f".{FENCE}.{os.getpid()}"
    with temporary.open("w") as file:
        json.dump({"epoch": epoch}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync(directory)


def fence(directory: Path) -> int | None:
    """The epoch that may act; None where none was named yet. Raises ValueError where there is no telling."""
    path = directory / FENCE
    return int(json.loads(plain_files.read(path))["epoch"]) if path.exists() else None


def newest(
    directory: Path, lineage: Lineage, beat: Beat = lambda: None, *, unreadable_is_damaged: bool = True
) -> dict[str, Any]:
    """{newest: fields of its manifest, or absent; skipped: the damaged and half-written ones newer than it}.

    A checkpoint of epoch e counts only if its step was kept by every later epoch (``lineage``: epoch, resume step).
    ``beat`` is called between blocks, so that the caller's heart goes on beating while large files are hashed.
    Raises OSError where the directory is away, and, unless ``unreadable_is_damaged``, where a file cannot be read.
    """
    skipped: list[dict[str, str]] = []
    resumes = [(int(epoch), int(step)) for epoch, step in lineage]
    for (epoch, step), name in _candidates(directory):
        if not kept(epoch, step, resumes):
            continue
        try:
            manifest, problem = _examine(directory, name, epoch, step, beat)
        except OSError as error:
            if not unreadable_is_damaged:
                raise
            manifest, problem = {}, f"not readable: {error}"
        if not problem:
            return {"newest": {field: manifest.get(field) for field in FIELDS}, "skipped": skipped}
        skipped.append({"name": name, "reason": problem})
        os.stat(directory)  # where the share has gone away, nothing in it is damaged
    return {"newest": None, "skipped": skipped}


def kept(epoch: int, step: int, lineage: Lineage) -> bool:
    """Does the state after ``step`` of ``epoch`` belong to the line of epochs that was carried on?"""
    return all(step <= resumed for later, resumed in lineage if later > epoch)


def _candidates(directory: Path) -> Iterator[tuple[tuple[int, int], str]]:
    """Everything that looks like a checkpoint, newest first: (epoch, step) and name."""
    found = {match[1]: (int(match[2]), int(match[3])) for match in map(_NAME.match, os.listdir(directory)) if match}
    yield from sorted(((age, name) for name, age in found.items()), reverse=True)


def _examine(directory: Path, name: str, epoch: int, step: int, beat: Beat) -> tuple[Mapping[str, Any], str]:
    """(manifest, what is wrong with the checkpoint; empty where nothing is)."""
    try:
        manifest = json.loads(plain_files.read(directory / f"{name}.json"))
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
    return (_damaged_shards if sharded else _differs)(file, manifest, beat)


def _damaged_shards(directory: Path, manifest: Mapping[str, Any], beat: Beat) -> str:
    """The first file that is not as its rank wrote it; empty where all are."""
    files: manifests.Files = manifest["files"]
    if manifests.joint(files) != manifest["sha256"]:
        return "manifest's files are not those of its sha256"
    if directory.is_symlink():
        return f"{directory.name} is a link"
    problems = ((name, _differs(directory / name, told, beat)) for name, told in sorted(files.items()))
    return next((f"{name}: {problem}" for name, problem in problems if problem), "")


def _differs(file: Path, told: Mapping[str, Any], beat: Beat) -> str:
    size = file.stat().st_size
    if size != told["bytes"]:
        return f"size {size}, manifest says {told['bytes']}"
    found = _sha256(file, beat)
    return "" if found == told["sha256"] else f"sha256 {found[:12]}, manifest says {told['sha256'][:12]}"


def _sha256(path: Path, beat: Beat) -> str:
    digest = hashlib.sha256()
    with open(plain_files.opened(path), "rb") as file:
        while block := file.read(8 << 20):
            digest.update(block)
            beat()
    return digest.hexdigest()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
