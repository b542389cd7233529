"""Putting a checkpoint into the shared directory so that it is whole and fenced, or not there at all. Standard library only."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import contents

#: Files and directories of a checkpoint: the one file, or the directory of all ranks' files (no suffix), and the manifest.
NAME = re.compile(r"^\.?e(\d+)-s(\d+)(\.pt|\.json|)(\.tmp)?$")
FENCE = "fence.json"


class Refused(Exception):
    """The fence belongs to a later epoch: this gang has been replaced and may change nothing any more."""

    #: Told by checkpoint.refused; not an error of its own.
    silent = True

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(f"{name}: fenced off by epoch {fence}")
        self.name, self.fence = name, fence


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which checkpoint it is. ``parent``: the name of the one before it in its lineage, None for the first."""

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
    """Put ``content`` in its place and then its manifest, each by temp, fsync and rename; the manifest.

    Raises Refused if ``fence.json`` names a later epoch, OSError if writing fails (nothing is left of the checkpoint then),
    ValueError if the fence cannot be read.
    """
    begin = content.since or time.monotonic()
    try:
        facts = _facts(identity, content.place(directory, identity.name, before_rename))
        check_fence(directory, identity)
        contents.write(directory / f"{identity.name}.json", json.dumps(facts, indent=1).encode() + b"\n")
        contents.sync(directory)
    except BaseException:
        contents.remove(content.path(directory, identity.name))
        raise
    if fence(directory) == identity.epoch:  # an epoch that was replaced meanwhile must not delete what is resumed from
        prune(directory, epoch=identity.epoch, keep=keep)
    return {**facts, "write_s": round(time.monotonic() - begin, 6)}


def check_fence(directory: Path, identity: Identity) -> None:
    """Raises Refused where a later epoch has taken over; OSError or ValueError where there is no telling."""
    current = fence(directory)
    if current > identity.epoch:
        raise Refused(identity.name, current)


def fence(directory: Path) -> int:
    """The epoch that may write. Raises OSError or ValueError if there is no telling."""
    path = directory / FENCE
    try:
        return int(json.loads(path.read_text())["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: does not tell an epoch") from error


def prune(directory: Path, *, epoch: int, keep: int) -> None:
    """Delete all but the newest ``keep`` committed checkpoints, and what older epochs left half-written behind them."""
    found = [(path, match) for path in directory.iterdir() if (match := NAME.match(path.name))]
    committed = sorted({_age(match) for _, match in found if match[3] == ".json" and not match[4]})
    oldest = committed[-keep:][0] if committed else (0, 0)
    for path, match in sorted(found, key=lambda one: one[1][3] != ".json"):  # a manifest goes before what it tells of
        if _age(match) < oldest or (match[4] and int(match[1]) < epoch):
            contents.remove(path)


def _age(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def _facts(identity: Identity, placed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": identity.name,
        "step": identity.step,
        "epoch": identity.epoch,
        "parent": identity.parent,
        "world": identity.world,
        **placed,
    }
