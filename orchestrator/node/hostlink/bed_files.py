"""The files of a bed in its directory on this host: made, signed for, removed."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import label, plain_files
from . import prunable_files

#: What ccbed creates in a bed's directory, and removes.
BED_FILES = ("keeper", "agent", "payloads", "nodes", "shared", "run.lock", "open-run.json", "run-secrets.json", "hosts")


def prepare_directories(hostdir: str, nodes: Sequence[str], shared_dir: str) -> dict[str, Any]:
    """Make the directories of a bed, readable by their owner only; ``{uid, gid}`` of the owner."""
    parts = ("keeper/inbox", "keeper/done", "agent", "payloads", *(f"nodes/{node}/inbox" for node in nodes))
    for path in (*(Path(hostdir) / part for part in parts), Path(shared_dir)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.stat(hostdir)
    return {"uid": status.st_uid, "gid": status.st_gid}


def remove_bed_files(hostdir: str) -> None:
    """Remove the bed's files, and its directory if nothing else is in it."""
    root = Path(hostdir)
    for path in (root / name for name in BED_FILES):
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
            prunable_files.remove(path)
        return
    for directory in (*own, Path(shared_dir) / run):
        shutil.rmtree(directory, ignore_errors=True)
    for outcome in (*root.glob(f"nodes/*/done/{run}.*"), *root.glob(f"keeper/done/{run}.*")):
        outcome.unlink(missing_ok=True)


def sign_manifest(hostdir: str, digest: str) -> str:
    """The HMAC-SHA256 of the digest of a bundle's manifest, with the key of the keeper. Raises OSError without the key."""
    key = plain_files.read_file(Path(hostdir) / label.KEEPER_DIR / label.KEY)
    return hmac.new(key, f"manifest {digest}".encode(), hashlib.sha256).hexdigest()
