"""What must be kept of a directory of runs: the evidence of baselines, and the nights that gates compare with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from ...store import index as runs_index
from .. import night_files
from ..baselines import DIRECTORY, Baseline, read_all
from ..gates import drift
from ..suite import Night

#: Recorded nights of a bed that gates look back on.
WINDOW = drift.HISTORY


def reasons(runs_dir: Path, baselines: Path, *, recorded: bool) -> dict[str, str]:
    """Name of a run or night -> why it is kept. ``recorded``: recorded nights need not be kept for the gates.

    ``baselines``: their directory; those beside the directory of runs count as well. The index is not needed. Raises CcbedError
    where a night or a baseline cannot be read, because nothing may be removed then.
    """
    nights = [night_files.read_night(path) for path in runs_index.nights(runs_dir)]
    beside = runs_dir.resolve().parent / DIRECTORY
    known = [read_all(directory) for directory in dict.fromkeys((baselines.resolve(), beside))]
    return {**({} if recorded else _of_window(nights)), **_of_evidence(itertools.chain(*known))}


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


def _of_evidence(baselines: Iterable[Baseline]) -> dict[str, str]:
    """A floor may name a run by its directory."""
    return {
        Path(run).name: f"evidence of {floor.metric} in {baseline.file}"
        for baseline in baselines
        for floor in baseline.floors
        for run in floor.evidence
    }
