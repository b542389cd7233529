"""The reports of a night: a page, a summary for a chat, JUnit XML, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ...model.errors import InfrastructureError
from ..night_judgement import NightJudgement
from ..records import Record
from ..suite import FINDINGS, RUNS, Night, Row
from .night_report import NightReport

REPORT = "report"

__all__ = ["REPORT", "NightReport", "render", "write"]


def write(
    night_dir: Path, night: Night, rows: Sequence[Row], judgement: NightJudgement, trends: Iterable[Record],
    folder: Path | None = None,
) -> tuple[Path, ...]:  # fmt: skip
    """Write the files of ``report/``, or of another ``folder``, and return them.

    ``trends``: records of the bed's recorded nights, this one included if it is recorded. A file that cannot be made
    does not keep the others from being written. Raises OSError, InfrastructureError that names the files that are missing.
    """
    report = NightReport(
        night=night, rows=tuple(rows), judgement=judgement, records=tuple(trends),
        links={} if folder else link_runs(night_dir, rows), directory=str(night_dir),
    )  # fmt: skip
    folder = folder or night_dir / REPORT
    folder.mkdir(parents=True, exist_ok=True)
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
    from . import night_gauges, night_junit, night_summary, page

    return {
        "summary.md": night_summary.render,
        "junit.xml": night_junit.render,
        "metrics.prom": night_gauges.render,
        "index.html": page.render,
    }


def link_runs(night_dir: Path, rows: Iterable[Row]) -> dict[str, str]:
    """The page of each run, else its directory; a run without either has no link."""
    links = {}
    for row in rows:
        directory = night_dir / RUNS / row.run
        if row.run and directory.is_dir():
            page = directory / "report" / "index.html"
            links[row.run] = f"../{RUNS}/{quote(row.run)}/" + ("report/index.html" if page.is_file() else "")
    return links
