"""A host's clocks beside this machine's, each reading with the error that it may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Theirs = ours + offset, give or take ``error_s``: half of the round trip. ``boot``: of the monotonic clock there."""

    boot: str
    offset_s: float
    wall_offset_s: float
    error_s: float


def reading(found: Mapping[str, Any], before: float, after: float, wall: float) -> Reading:
    """From an answer ({mono, wall, boot}) to what was asked at ``before`` and came at ``after``, when it was ``wall`` here."""
    half = (after - before) / 2
    return Reading(
        boot=str(found["boot"]),
        offset_s=float(found["mono"]) - (before + half),
        wall_offset_s=float(found["wall"]) - (wall - half),
        error_s=half,
    )


def better(one: Reading | None, other: Reading) -> Reading:
    """The one with less error; the newer one where the host was booted in between."""
    return one if one and one.boot == other.boot and one.error_s < other.error_s else other
