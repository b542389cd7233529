"""What must be kept of a directory of runs: the evidence of baselines, and the nights that gates compare with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...store import index as runs_index
from .. import night_files
from ..gates import drift
from ..suite import Night

#: Recorded nights of a bed that gates look back on.
WINDOW = drift.HISTORY


def reasons(runs_dir: Path, state: Path, *, recorded: bool) -> dict[str, str]:
    """Name of a run or night -> why it is kept. ``recorded``: recorded nights need not be kept for the gates.

    Reads the nights themselves: their index may be away. Raises CcbedError where a night or a baseline cannot be read, because
    nothing may be removed then.
    """
    nights = [night_files.read_night(path) for path in runs_index.nights(runs_dir)]
    return {**({} if recorded else _of_window(nights)), **_of_evidence()}


def _of_window(nights: Iterable[Night]) -> dict[str, str]:
    by_bed: dict[str, list[Night]] = {}
    for night in sorted(nights, key=lambda night: night.number):
        if night.recorded:
            by_bed.setdefault(night.bed, []).append(night)
    return {
        night.name: f"recorded night {night.number} of bed {bed}: gates compare with the last {WINDOW}"
        for bed, of_bed in by_bed.items()
        for night in of_bed[-WINDOW:]
    }


def _of_evidence() -> dict[str, str]:
    return {}
