"""The directory of the user's project on the node: copied there once for a run, shared by its ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ...model.gang import WorkDir


def prepare(work_dir: WorkDir) -> None:
    """Copy the project, unless a rank of this run did. The ranks of all nodes may call it at the same time. Raises OSError."""
    path = Path(work_dir.path)
    if not work_dir.source or path.is_dir():
        return
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copytree(work_dir.source, temporary, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    try:
        temporary.rename(path)
    except OSError:  # another rank was faster
        shutil.rmtree(temporary, ignore_errors=True)
        if not path.is_dir():
            raise


def on_node(work_dir: WorkDir | None, path: str) -> str:
    """The path on the node of a path on the controller: below the project it moves with the project."""
    if work_dir is None or not _is_moved(work_dir) or not Path(path).is_relative_to(work_dir.root):
        return path
    return str(Path(work_dir.path, Path(path).relative_to(work_dir.root)))


def current_directory(work_dir: WorkDir | None, cwd: str | None) -> str:
    """The directory of the ranks: that of the user; empty: unchanged, because the node lacks it.

    Ranks of a copy never write where other runs read: outside of the project they work at its top.
    """
    if work_dir and _is_moved(work_dir) and not (cwd and Path(cwd).is_relative_to(work_dir.root)):
        return work_dir.path
    path = on_node(work_dir, cwd) if cwd else ""
    return path if path and Path(path).is_dir() else ""


def _is_moved(work_dir: WorkDir) -> bool:
    return work_dir.root != work_dir.path
