"""The records of leases on disk: which faults are in force, and until when. ``fault_lifecycle`` heals them at that time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.act import Act
from ...model.frozen import dataclass
from ...system import host_facts, plain_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A fault that may be in force. ``until``: CLOCK_MONOTONIC seconds of the boot ``boot``.

    ``inspected``: before the injection, the state that proves the fault was observed not to hold.
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
        """0 for a lease of an earlier boot."""
        return max(0.0, self.until - time.monotonic()) if self.boot == host_facts.boot_id() else 0.0


class Leases:
    """The leases of one bed, one file per lease, so that a later keeper continues them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def arm(self, lease: Lease) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        plain_files.write_json(self._path(lease), codec.plain(lease))

    def drop(self, lease: Lease) -> None:
        self._path(lease).unlink(missing_ok=True)

    def of(self, node: str, name: str | None) -> list[Lease]:
        """The leases on a node with this id, or of this kind of fault."""
        return [lease for lease in self.all() if lease.node == node and name in (lease.id, lease.fault)]

    def all(self) -> list[Lease]:
        """The leases of this boot, and those of faults on other hosts. Other faults of an earlier boot ended with its processes."""
        contents = map(plain_files.read_json, sorted(self._directory.glob("*.json")))
        leases = (lease for content in contents for lease in _build(content))
        return [lease for lease in leases if lease.act.outside or lease.boot == host_facts.boot_id()]

    def _path(self, lease: Lease) -> Path:
        return self._directory / f"{lease.node}.{lease.id.replace('/', '_')}.json"


def describe_leases(directory: Path) -> tuple[str, ...]:
    """The leases in force, one short line each."""
    leases = Leases(directory).all()
    return tuple(f"{lease.fault} on {lease.node}: undone by itself in {lease.left_s:.0f} s" for lease in leases)


def _build(content: Mapping[str, Any]) -> list[Lease]:
    """The lease in a file; none if the file is of another version."""
    try:
        return [codec.build(Lease, content)]
    except (KeyError, TypeError, ValueError):
        return []
