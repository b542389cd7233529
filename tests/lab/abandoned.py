"""Beds of tests that were aborted: what is left of them on the engine of a machine that is used again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.model import container
from orchestrator.node.files import label


def remove(client: Any) -> None:
    """Containers, then networks, of beds in a temporary directory whose keeper is gone. Anybody else's are left alone."""
    for leftover in client.containers.list(all=True, filters={"label": container.OWNER}):
        if is_abandoned(hostdir(leftover.attrs["Mounts"])):
            leftover.remove(force=True, v=True)
    for leftover in client.networks.list(filters={"label": container.OWNER}):
        leftover.reload()
        if not leftover.containers and is_abandoned(Path(leftover.attrs["Labels"][container.OWNER].partition(":")[2])):
            leftover.remove()


def hostdir(mounts: Sequence[Mapping[str, Any]]) -> Path:
    """The bed's directory on its host: every node sees the ``agent`` directory in it."""
    return next((Path(mount["Source"]).parent for mount in mounts if Path(mount["Source"]).name == "agent"), Path("/"))


def is_abandoned(directory: Path) -> bool:
    """``directory``: where a bed's keeper is, if it is."""
    return directory.is_relative_to(tempfile.gettempdir()) and not label.lock_holder(directory / label.KEEPER_DIR)
