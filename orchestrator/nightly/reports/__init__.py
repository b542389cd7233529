"""The reports of a night: a page, a summary for a chat, JUnit XML, metrics for Prometheus, and a dashboard for Grafana."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ...model.errors import CcbedError
from .. import night_files
from ..gates.nights import Record
from ..night_judgement import NightJudgement
from ..suite import RUNS, Night, Row
from .night_report import NightReport, PreviousNight

REPORT = "report"

__all__ = ["REPORT", "NightReport", "PreviousNight", "render", "write"]


def write(
    night_dir: Path, night: Night, rows: Sequence[Row], judgement: NightJudgement, trends: Iterable[Record],
    previous: PreviousNight | str | None = None,
) -> tuple[Path, ...]:  # fmt: skip
    """Write the files of ``report/`` and return them.

    ``trends``: records of the bed's recorded nights, this one included if it is recorded. ``previous``: the recorded night
    before this one, or why it cannot be read; it is looked for beside this night if it is None. Raises OSError.
    """
    if previous is None:
        previous = read_previous(night_dir, night)
    report = NightReport(
        night=night, rows=tuple(rows), judgement=judgement, records=tuple(trends), previous=previous,
        links=link_runs(night_dir, rows), directory=str(night_dir),
    )  # fmt: skip
    folder = night_dir / REPORT
    folder.mkdir(exist_ok=True)
    paths = []
    for name, content in render(report).items():
        path = folder / name
        path.write_bytes(content)
        paths.append(path)
    return tuple(paths)


def render(report: NightReport) -> Mapping[str, bytes]:
    """Name of a file -> its content."""
    from . import grafana, junit, metrics, page, summary

    return {
        "index.html": page.render(report),
        "summary.md": summary.render(report),
        "junit.xml": junit.render(report),
        "metrics.prom": metrics.render(report),
        "grafana.json": grafana.render(),
    }


def read_previous(night_dir: Path, night: Night) -> PreviousNight | str | None:
    """The newest recorded night of the bed and suite before this one, or why it cannot be read; None if there is none."""
    numbered: list[tuple[int, Path, Night]] = []
    unreadable = ""
    for directory in night_files.nights(night_dir.resolve().parent):
        if directory.name == night.name:
            continue
        try:
            earlier = night_files.read_night(directory)
        except (CcbedError, OSError) as error:
            unreadable = f"{directory.name} cannot be read: {error}"
            continue
        if (earlier.bed, earlier.suite.name) == (night.bed, night.suite.name) and earlier.recorded:
            numbered.append((earlier.number, directory, earlier))
    before = [entry for entry in numbered if not night.recorded or entry[0] < night.number]
    if not before:
        return unreadable or None
    _, directory, earlier = max(before, key=lambda entry: entry[0])
    try:
        judgement, rows = night_files.read_judgement(directory), night_files.read_rows(directory)
    except (CcbedError, OSError) as error:
        return f"{directory.name} cannot be read: {error}"
    if judgement is None:
        return f"{directory.name} was not judged"
    return PreviousNight(night=earlier, rows=rows, judgement=judgement)


def link_runs(night_dir: Path, rows: Iterable[Row]) -> dict[str, str]:
    """The page of each run, else its directory; a run without either has no link."""
    links = {}
    for row in rows:
        directory = night_dir / RUNS / row.run
        if row.run and directory.is_dir():
            page = directory / "report" / "index.html"
            links[row.run] = f"../{RUNS}/{quote(row.run)}/" + ("report/index.html" if page.is_file() else "")
    return links
