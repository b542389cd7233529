"""Commits a checkpoint to the shared directory: whole and behind the fence of the attempt, or not at all. Standard library only."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass
from . import contents

#: Names of a checkpoint: its single file, or the directory of all ranks' files (no suffix), and its manifest.
NAME = re.compile(r"^\.?e(\d+)-s(\d+)(\.pt|\.json|)(\.tmp)?$")
FENCE = "fence.json"


class Refused(Exception):
    """The fence belongs to a later attempt: this gang has been replaced and may not commit."""

    #: Reported by the event checkpoint.refused, not as an error of the rank.
    silent = True

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(f"{name}: fenced off by attempt {fence}")
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
    directory: Path,
    identity: Identity,
    content: contents.Body,
    *,
    keep: int,
    before_rename: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Write ``content`` and then its manifest, each by temporary file, fsync and rename; return the manifest.

    Raises Refused if ``fence.json`` names a later attempt, OSError if writing fails, ValueError if the fence cannot be read.
    In all three cases nothing of the checkpoint remains.
    """
    begin = content.since or time.monotonic()
    try:
        facts = _facts(identity, content.store(directory, identity.name, before_rename))
        check_fence(directory, identity)
        contents.write(directory / f"{identity.name}.json", json.dumps(facts, indent=1).encode() + b"\n")
        contents.sync(directory)
    except BaseException:
        contents.remove(content.path(directory, identity.name))
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
    path = directory / FENCE
    try:
        return int(json.loads(path.read_text())["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: has no epoch") from error


def prune(directory: Path, *, epoch: int, keep: int) -> None:
    """Delete all but the newest ``keep`` committed checkpoints, and unfinished files of earlier attempts."""
    entries = [(path, match) for path in directory.iterdir() if (match := NAME.match(path.name))]
    committed = sorted({_age(match) for _, match in entries if match[3] == ".json" and not match[4]})
    oldest = committed[-keep:][0] if committed else (0, 0)
    for path, match in sorted(entries, key=lambda entry: entry[1][3] != ".json"):  # a manifest before its files
        if _age(match) < oldest or (match[4] and int(match[1]) < epoch):
            contents.remove(path)


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
