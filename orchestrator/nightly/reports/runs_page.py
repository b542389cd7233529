"""One page over many runs and nights: filters, sorting and paging in the page, offline."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from ...core.verdict.sentence import count, seconds
from ...model.frozen import dataclass
from . import page, trends

if TYPE_CHECKING:
    from ..index.entries import NightEntry, RunEntry

FILE = "index.html"
#: Nights and trials with a row, the newest and the most frequent ones; values of a picture.
NIGHTS, TRIALS, VALUES = 14, 60, 60
#: In the name of a directory of repeated runs or of a sweep, which the index lists beside the nights.
_REPEATS = re.compile("Z-(repeat|sweep)-")
#: What HTML reads within a script, as JSON may write it.
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of a trial's runs. ``median``: as text, empty without a value."""

    label: str
    median: str
    picture: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRuns:
    name: str
    runs: int
    outcomes: tuple[tuple[str, int], ...]
    ttr: Series
    duration: Series


def render(
    directory: Path, runs: Sequence[RunEntry], nights: Sequence[NightEntry] = (), notes: Iterable[str] = ()
) -> bytes:  # fmt: skip
    """A page to be written into ``directory``, the directory of the runs. ``runs`` and ``nights``: oldest first."""
    by_trial: dict[str, list[RunEntry]] = {}
    for run in runs:
        by_trial.setdefault(run.trial, []).append(run)
    groups = [entry for entry in nights if _REPEATS.search(entry.name)]
    nights = [entry for entry in nights if not _REPEATS.search(entry.name)]
    most = sorted(by_trial.items(), key=lambda item: (-len(item[1]), item[0]))
    values: Mapping[str, Any] = {
        "title": f"{count(len(runs), 'run')}" + (f", {count(len(nights), 'night')}" if nights else ""),
        "directory": str(directory),
        "period": f"{runs[0].started} to {runs[-1].started}" if runs else "",
        "figures": figures(runs, nights),
        "nights": [(night, _night_address(directory, night)) for night in reversed(nights[-NIGHTS:])],
        "more_nights": max(0, len(nights) - NIGHTS),
        "groups": [(entry, _night_address(directory, entry)) for entry in reversed(groups[-NIGHTS:])],
        "more_groups": max(0, len(groups) - NIGHTS),
        "trials": [_trial(name, of_trial, index) for index, (name, of_trial) in enumerate(most[:TRIALS])],
        "more_trials": max(0, len(most) - TRIALS),
        "most": VALUES,
        "data": as_script(table(directory, runs, nights)),
        "notes": tuple(notes),
    }
    return page.environment().get_template("runs.html.j2").render(values).encode(errors="replace")


def as_script(document: Any) -> Markup:
    """JSON that may stand in a script: no text of a run can end it."""
    text = json.dumps(document, separators=(",", ":")).translate(_ESCAPES)
    return Markup(text)  # noqa: S704 - nothing that HTML reads is left


def figures(runs: Sequence[RunEntry], nights: Sequence[NightEntry]) -> list[tuple[str, str, str]]:
    outcomes = Counter(run.outcome for run in runs)
    recorded = sum(night.number > 0 for night in nights)
    return [
        ("runs", f"{len(runs):,}", f"of {count(len({run.trial for run in runs}), 'trial')}"),
        ("passed", f"{outcomes['pass']:,}", ", ".join(_others(outcomes))),
        ("nights", f"{len(nights):,}", f"{recorded:,} recorded"),
        ("beds", str(len({run.bed for run in runs})), ""),
    ]


def _others(outcomes: Mapping[str, int]) -> Iterator[str]:
    """The runs that did not pass: failed and unknown ones also where there is none, others by their outcome."""
    yield from (f"{outcomes['fail']:,} failed", f"{outcomes['unknown']:,} unknown")
    rest = ((outcome, number) for outcome, number in outcomes.items() if outcome not in ("pass", "fail", "unknown"))
    yield from (f"{number:,} {outcome or 'not judged'}" for outcome, number in rest)


def table(directory: Path, runs: Sequence[RunEntry], nights: Sequence[NightEntry]) -> dict[str, Any]:
    """The rows as lists, with numbers for names that repeat: 10,000 runs are about 1 MB.

    A row: started, trial, bed, outcome, time to recover, duration, night, name, folder, whether it has a page, whether it is of
    a recorded night.
    """
    names: dict[str, dict[str, int]] = {"trial": {}, "bed": {}, "outcome": {}, "night": {}, "folder": {}}
    recorded = {night.name for night in nights if night.number > 0}

    def number(column: str, name: str) -> int:
        return names[column].setdefault(name, len(names[column]))

    rows = [
        [
            run.started, number("trial", run.trial), number("bed", run.bed), number("outcome", run.outcome), _rounded(run.ttr_s),
            _rounded(run.duration_s), number("night", run.night), Path(run.directory).name,
            number("folder", _folder(directory, Path(run.directory))), int(_has_page(Path(run.directory))), int(run.night in recorded),
        ]
        for run in runs
    ]  # fmt: skip
    return {"names": {column: list(numbers) for column, numbers in names.items()}, "rows": rows}


def _folder(directory: Path, run: Path) -> str:
    """Return where a run lies, relative to the page: empty, or NIGHT/runs/."""
    folder = os.path.relpath(run.parent, directory)
    return "" if folder == "." else f"{quote(folder)}/"


def _has_page(directory: Path) -> bool:
    return (directory / "report" / "index.html").is_file()


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _night_address(directory: Path, night: NightEntry) -> str:
    path = Path(night.directory) / "report" / "index.html"
    return quote(os.path.relpath(path, directory)) if path.is_file() else ""


def _trial(name: str, runs: Sequence[RunEntry], index: int) -> TrialRuns:
    return TrialRuns(
        name=name, runs=len(runs), outcomes=tuple(Counter(run.outcome for run in runs).most_common()),
        ttr=_series("time to recover", [run.ttr_s for run in runs], f"ttr{index}", name),
        duration=_series("duration", [run.duration_s for run in runs], f"duration{index}", name),
    )  # fmt: skip


def _series(label: str, values: Iterable[float | None], identity: str, trial: str) -> Series:
    known = [value for value in values if value is not None]
    median = seconds(statistics.median(known)) if known else ""
    shown = known[-VALUES:]
    title = f"{label} of {trial}: the newest {len(shown)} of {count(len(known), 'run')}"
    picture = trends.sparkline(shown, identity, title) if len(shown) > 1 else Markup()
    return Series(label=label, median=median, picture=picture)
