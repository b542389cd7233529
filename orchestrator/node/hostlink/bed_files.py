"""The files of a bed in its directory on this host: made, signed for, listed for ``ccbed prune``, removed."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...system import plain_files
from ..files import label

#: What ccbed creates in a bed's directory, and removes.
BED_FILES = ("keeper", "agent", "payloads", "nodes", "shared", "run.lock", "open-run.json", "run-secrets.json", "hosts")


def prepare_directories(hostdir: str, nodes: Sequence[str], shared_dir: str) -> dict[str, Any]:
    """Make the directories of a bed, readable by their owner only; ``{uid, gid}`` of the owner."""
    parts = ("keeper/inbox", "keeper/done", "agent", "payloads", *(f"nodes/{node}/inbox" for node in nodes))
    for path in (*(Path(hostdir) / part for part in parts), Path(shared_dir)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.stat(hostdir)
    return {"uid": status.st_uid, "gid": status.st_gid}


def remove_bed_files(hostdir: str, more: Iterable[str] = ()) -> None:
    """Remove the bed's files, those of ``more`` as well, and its directory if nothing else is in it."""
    root = Path(hostdir)
    for path in (root / name for name in (*BED_FILES, *more)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if root.is_dir() and not any(root.iterdir()):
        root.rmdir()


def remove_run(hostdir: str, shared_dir: str, run: str, is_gathered: bool = False) -> None:
    """Remove the files of a run: those of its nodes, checkpoints, kept outcomes.

    ``is_gathered``: only those of its nodes, which were copied; their empty directories say that checkpoints are still there.
    """
    root = Path(hostdir)
    own = tuple(root.glob(f"nodes/*/runs/{run}"))
    if is_gathered:
        for path in (path for directory in own for path in directory.iterdir()):
            remove(path)
        return
    for directory in (*own, Path(shared_dir) / run):
        shutil.rmtree(directory, ignore_errors=True)
    for outcome in (*root.glob(f"nodes/*/done/{run}.*"), *root.glob(f"keeper/done/{run}.*")):
        outcome.unlink(missing_ok=True)


def sign_manifest(hostdir: str, digest: str) -> str:
    """The HMAC-SHA256 of the digest of a bundle's manifest, with the key of the keeper. Raises OSError without the key."""
    key = plain_files.read_file(Path(hostdir) / label.KEEPER_DIR / label.KEY)
    return hmac.new(key, f"manifest {digest}".encode(), hashlib.sha256).hexdigest()


#: A run's files, checkpoints and kept outcomes; a payload; the output of an `exec`; an older agent archive.
RUN, PAYLOAD, EXEC, ARCHIVE = "run", "payload", "exec", "archive"


def list_prunable(hostdir: str, shared_dir: str) -> list[dict[str, Any]]:
    """``{kind, name, size_bytes, age_s}`` of each entry; its age counts from its newest file, by the clock of this host."""
    root, shared = Path(hostdir), Path(shared_dir)
    return [
        {"kind": kind, "name": name, **measure(paths, time.time())}
        for (kind, name), paths in sorted(_paths(root, shared).items())
    ]


def remove_prunable(hostdir: str, shared_dir: str, entries: Sequence[Sequence[str]]) -> int:
    """Remove entries, given as ``[kind, name]``; how many. Only what ``list_prunable`` lists is removed."""
    root, shared = Path(hostdir), Path(shared_dir)
    known = _paths(root, shared)
    chosen = [(str(kind), str(name)) for kind, name in entries if (str(kind), str(name)) in known]
    for entry in chosen:
        for path in known[entry]:
            remove(path)
    return len(chosen)


def _entries(root: Path, shared: Path) -> Iterator[tuple[str, str, Path]]:
    """(kind, name, path) of everything with a name that ccbed gives."""
    for path in (*root.glob("nodes/*/runs/*"), *_runs_of(root, shared)):
        yield RUN, path.name, path
    for path in root.glob("payloads/*"):
        yield PAYLOAD, path.name, path
    for path in root.glob("nodes/*/exec/*"):
        yield EXEC, path.name, path
    archives = sorted(root.glob("agent/agent-*.pyz"), key=lambda path: path.lstat().st_mtime_ns)
    for path in archives[:-1]:
        yield ARCHIVE, path.name, path


def _runs_of(root: Path, shared: Path) -> Iterator[Path]:
    """Runs in the shared directory. One outside of the bed's directory may serve other beds: only runs of its nodes count."""
    known = {path.name for path in root.glob("nodes/*/runs/*")}
    for path in shared.glob("*/checkpoints"):
        is_of_bed = shared == root / "shared" or path.parent.name in known
        if is_of_bed and path.is_dir() and not path.is_symlink():
            yield path.parent


def _paths(root: Path, shared: Path) -> dict[tuple[str, str], list[Path]]:
    paths: dict[tuple[str, str], list[Path]] = {}
    for kind, name, path in _entries(root, shared):
        paths.setdefault((kind, name), []).append(path)
    for (kind, name), own in paths.items():
        if kind == RUN:
            own += [*root.glob(f"nodes/*/done/{name}.*"), *root.glob(f"keeper/done/{name}.*")]
    return paths


def measure(paths: Iterable[Path], now: float) -> dict[str, Any]:
    """``{size_bytes, age_s}`` of these paths together; ``now``: seconds since 1970."""
    sizes, times = [0], [0.0]
    for path in paths:
        for entry in (path, *_below(path)):
            try:
                status = entry.lstat()
            except OSError:
                continue
            sizes.append(status.st_blocks * 512)
            times.append(status.st_mtime)
    return {"size_bytes": sum(sizes), "age_s": max(0.0, now - max(times))}


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        for directory, folders, files in os.walk(path):
            yield from (Path(directory, name) for name in (*folders, *files))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
