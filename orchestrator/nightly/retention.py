"""Names what must be kept of a directory of runs: the evidence of baselines, and the nights that later ones are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from ..store import index as runs_index
from ..store import paths, seal
from . import levels, night_files
from .baselines import DIRECTORY, Baseline, read_all
from .statistics.night_statistics import REFERENCE_NIGHTS
from .suite import RUNS, Night

#: Recorded nights of a bed that are kept since each accepted level, and the last ones: a few of a reference may lack a figure.
WINDOW = REFERENCE_NIGHTS + 10


def reasons(runs_dir: Path, baselines: Path, *, recorded: bool) -> dict[str, str]:
    """Name of a run or night -> why it is kept. ``recorded``: recorded nights need not be kept for the gates.

    ``baselines``: their directory; those beside the directory of runs count as well, and what ``keep_for`` named. The index is not
    needed. Raises CcbedError where a night or a baseline cannot be read, because nothing may be removed then.
    """
    nights = [night_files.read_night(path) for path in runs_index.nights(runs_dir)]
    beside = runs_dir.resolve().parent / DIRECTORY
    known = [read_all(directory) for directory in dict.fromkeys((baselines.resolve(), beside))]
    return {
        **({} if recorded else _of_window(runs_dir, nights)),
        **_of_named(runs_dir),
        **_of_evidence(itertools.chain(*known)),
    }


def keep_for(directory: Path, baselines: Iterable[Path]) -> None:
    """Name the baselines in the run or night that they rest on: wherever their files are, it is kept. Raises OSError."""
    night = directory.parent.parent
    owner = night if night_files.is_night(night) else directory
    file = owner / seal.BASELINES
    known = file.read_text().splitlines() if file.exists() else []
    lines = dict.fromkeys((*known, *(str(baseline.resolve()) for baseline in baselines)))
    paths.write(file, "".join(f"{line}\n" for line in lines).encode(), durable=True)


def _of_named(runs_dir: Path) -> dict[str, str]:
    """An unreadable list keeps its run, too."""
    return {
        file.parent.name: f"evidence of the baselines in {file}: if there are none, remove that file"
        for pattern in (f"*/{seal.BASELINES}", f"*/{RUNS}/*/{seal.BASELINES}")
        for file in runs_dir.glob(pattern)
    }


def _of_window(runs_dir: Path, nights: Iterable[Night]) -> dict[str, str]:
    by_bed: dict[str, list[Night]] = {}
    for night in sorted(nights, key=lambda night: night.number):
        if night.recorded:
            by_bed.setdefault(night.bed, []).append(night)
    kept: dict[str, str] = {}
    for bed, of_bed in by_bed.items():
        for begin in {0, *(level.night for level in levels.read(runs_dir, bed))}:
            for night in [night for night in of_bed if night.number >= begin][:WINDOW]:
                kept[night.name] = f"recorded night {night.number} of bed {bed}: later nights are compared with it"
        for night in of_bed[-WINDOW:]:
            kept.setdefault(night.name, f"recorded night {night.number} of bed {bed}: one of the last {WINDOW}")
    return kept


def _of_evidence(baselines: Iterable[Baseline]) -> dict[str, str]:
    """A floor may name a run by its directory."""
    return {
        Path(run).name: f"evidence of {floor.metric} in {baseline.file}"
        for baseline in baselines
        for floor in baseline.floors
        for run in floor.evidence
    }
