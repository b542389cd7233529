"""The reports of a night: a page, a summary for a chat, JUnit XML, metrics for Prometheus, and a dashboard for Grafana."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ..gates.nights import Record
from ..night_judgement import NightJudgement
from ..suite import RUNS, Night, Row
from .night_report import NightReport, PreviousNight

REPORT = "report"

__all__ = ["REPORT", "NightReport", "PreviousNight", "render", "write"]


def write(
    night_dir: Path, night: Night, rows: Sequence[Row], judgement: NightJudgement, trends: Iterable[Record],
    previous: PreviousNight | None = None,
) -> tuple[Path, ...]:  # fmt: skip
    """Write the files of ``report/`` and return them.

    ``trends``: records of the bed's recorded nights, this one included if it is recorded. ``previous``: the recorded night
    before this one, None where there is none or it cannot be read. Raises OSError.
    """
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


def link_runs(night_dir: Path, rows: Iterable[Row]) -> dict[str, str]:
    """The page of each run, else its directory; a run without either has no link."""
    links = {}
    for row in rows:
        directory = night_dir / RUNS / row.run
        if row.run and directory.is_dir():
            page = directory / "report" / "index.html"
            links[row.run] = f"../{RUNS}/{quote(row.run)}/" + ("report/index.html" if page.is_file() else "")
    return links
