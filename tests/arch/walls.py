"""The budgets of the repository: the format of walls.toml, and what a measured value means for a wall."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("walls.toml")
NEXT = "next: make it smaller; or raise its limit in tests/arch/walls.toml, with the reason beside the number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """``lowest``: the lowest limit that it ever had; a limit above it needs a reason."""

    name: str
    limit: int
    lowest: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A value, and where the reader finds what it counts."""

    value: int
    where: str = ""


def read(text: str) -> Mapping[str, Wall]:
    """Name -> wall. Raises TypeError for a key that no wall has, and for a number that is missing."""
    return {name: Wall(name=name, **keys) for name, keys in tomllib.loads(text)["walls"].items()}


def unreasonable(walls: Mapping[str, Wall]) -> Iterator[str]:
    """Limits that were raised without a reason, or lowered without a trace."""
    for wall in walls.values():
        if wall.limit < wall.lowest:
            yield f"{wall.name}: limit {wall.limit} is the lowest so far: write lowest = {wall.limit} as well"
        elif wall.limit > wall.lowest and not wall.reason.strip():
            yield f"{wall.name}: limit {wall.limit} was raised from {wall.lowest}: write the reason beside it"


def broken(wall: Wall, measured: Measured) -> str:
    """Empty if the value is within the limit; else what is printed."""
    if measured.value <= wall.limit:
        return ""
    reason = f"reason of the limit: {wall.reason}" if wall.reason else ""
    return "\n".join(filter(None, [line(wall, measured), measured.where, reason, NEXT]))


def line(wall: Wall, measured: Measured) -> str:
    return f"{wall.name}: {measured.value} of {wall.limit}"
