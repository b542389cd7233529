"""The reports of a night: a page, a summary for a chat, JUnit XML, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ...model.errors import CcbedError, InfrastructureError
from .. import night_files
from ..gates.nights import Record
from ..identity import Nodes
from ..night_judgement import NightJudgement
from ..suite import FINDINGS, RUNS, Night, Row
from .night_report import NightReport, PreviousNight

REPORT = "report"

__all__ = ["REPORT", "NightReport", "PreviousNight", "render", "write"]


def write(
    night_dir: Path, night: Night, rows: Sequence[Row], judgement: NightJudgement, trends: Iterable[Record],
    previous: PreviousNight | str | None = None,
) -> tuple[Path, ...]:  # fmt: skip
    """Write the files of ``report/`` and return them.

    ``trends``: records of the bed's recorded nights, this one included if it is recorded. ``previous``: the recorded night
    before this one, or why it cannot be read; it is looked for beside this night if it is None. A file that cannot be made
    does not keep the others from being written. Raises OSError, InfrastructureError that names the files that are missing.
    """
    if previous is None:
        previous = read_previous(night_dir, night)
    report = NightReport(
        night=night, rows=tuple(rows), judgement=judgement, records=tuple(trends), previous=previous,
        links=link_runs(night_dir, rows), directory=str(night_dir),
    )  # fmt: skip
    folder = night_dir / REPORT
    folder.mkdir(exist_ok=True)
    paths, problems = [], []
    for name, render_file in renderers().items():
        try:
            content = render_file(report)
        except Exception as error:  # noqa: BLE001 - a defect of one report must not take the others with it
            problems.append(f"{folder / name}: {type(error).__name__}: {error}")
            continue
        (folder / name).write_bytes(content)
        paths.append(folder / name)
    if problems:
        raise InfrastructureError(*problems, hint=f"report this; the verdict is in {night_dir / FINDINGS}")
    return tuple(paths)


def render(report: NightReport) -> Mapping[str, bytes]:
    """Name of a file -> its content."""
    return {name: render_file(report) for name, render_file in renderers().items()}


def renderers() -> Mapping[str, Callable[[NightReport], bytes]]:
    """The files of a report. The page comes last: what fails in it leaves the files for programs."""
    from . import junit, metrics, page, summary

    return {
        "summary.md": summary.render,
        "junit.xml": junit.render,
        "metrics.prom": metrics.render,
        "index.html": page.render,
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
    renamed = Nodes(night.all_hosts).judgement(judgement, earlier.all_hosts)
    return PreviousNight(night=earlier, rows=rows, judgement=renamed)


def link_runs(night_dir: Path, rows: Iterable[Row]) -> dict[str, str]:
    """The page of each run, else its directory; a run without either has no link."""
    links = {}
    for row in rows:
        directory = night_dir / RUNS / row.run
        if row.run and directory.is_dir():
            page = directory / "report" / "index.html"
            links[row.run] = f"../{RUNS}/{quote(row.run)}/" + ("report/index.html" if page.is_file() else "")
    return links
