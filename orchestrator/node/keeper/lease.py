"""Leases: what the keeper must undo by itself when nobody heals in time, kept on disk so that its successor does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.act import Act
from ..files import label


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A fault that may be in force. ``until``: CLOCK_MONOTONIC seconds of the boot ``boot``.

    ``inspected``: the state that proves it was observed before the injection, and did not hold.
    """

    id: str
    fault: str
    node: str
    key: str
    run: str
    until: float
    boot: str
    act: Act
    epoch: int | None = None
    inspected: bool = False

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())


class Leases:
    """The leases of one bed: a file for each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def arm(self, lease: Lease) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        label.write(self._path(lease), codec.plain(lease))

    def drop(self, lease: Lease) -> None:
        self._path(lease).unlink(missing_ok=True)

    def of(self, node: str, fault: Mapping[str, Any]) -> list[Lease]:
        """The leases on a node that the value of a command means: by its ``id``, else by its ``fault``."""
        name = fault.get("id") or fault.get("fault")
        return [one for one in self.all() if one.node == node and name in (one.id, one.fault)]

    def all(self) -> list[Lease]:
        """Those of this boot; with the one before, all processes have ended."""
        found = map(label.read, sorted(self._directory.glob("*.json")))
        return [lease for content in found if content.get("boot") == label.boot_id() for lease in _built(content)]

    def _path(self, lease: Lease) -> Path:
        return self._directory / f"{lease.node}.{lease.id.replace('/', '_')}.json"


def texts(directory: Path) -> tuple[str, ...]:
    """The leases in force, for people: one short line each."""
    return tuple(f"{one.fault} on {one.node}: heals by itself in {one.left_s:.0f} s" for one in Leases(directory).all())


def _built(content: Mapping[str, Any]) -> list[Lease]:
    """The lease in a file; none where the file is of another version."""
    try:
        return [codec.build(Lease, content)]
    except (KeyError, TypeError, ValueError):
        return []
