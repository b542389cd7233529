"""Files of ended runs in a bed's directory on this host, which ``ccbed prune`` lists and removes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
