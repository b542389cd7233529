"""Twenty lines of Markdown for a chat or a mail: the verdict, failures, culprits, changes, and where the report lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...reports.summary import cell, code
from .changes import changes
from .night_report import NightReport, cells, culprits

LINES = 20
#: Lines of each list; the rest is counted.
FAILED_ROWS, CULPRITS, CHANGES = 3, 4, 3
#: Characters of a line.
WIDTH = 240


def render(report: NightReport) -> bytes:
    night, judgement = report.night, report.judgement
    lines = [
        f"# {judgement.word.upper()}: {cell(judgement.sentence)}",
        f"{cell(night.suite.name)} on bed {cell(night.bed)}, {cell(night.started)}, "
        + (f"night {night.number}" if night.recorded else "not recorded"),
        *_list("Not passed", _rows(report), FAILED_ROWS),
        *_list("Culprits and suspects", _culprits(report), CULPRITS),
        *_list("Changed", (f"{change.kind}: {change.text}" for change in changes(report)), CHANGES),
        "",
        f"Report: {code(f'{report.directory}/report/index.html')}",
    ]
    return ("\n".join(lines[:LINES]) + "\n").encode(errors="replace")


def _rows(report: NightReport) -> Iterator[str]:
    for row in cells(report):
        if row.state not in ("passed", "skipped"):
            bad = sum(repeat.state not in ("passed", "skipped") for repeat in row.rows)
            how_many = f" ({bad} of {len(row.rows)} repeats)" if len(row.rows) > 1 else ""
            yield f"{row.cell}: {row.state}{how_many}" + (f": {row.reasons[0]}" if row.reasons else "")


def _culprits(report: NightReport) -> Iterator[str]:
    for part in culprits(report):
        since = f", since {part.since}" if part.since else ""
        yield f"{part.state} {part.name}{since}: {part.findings[0].finding.text}"


def _list(title: str, texts: Iterable[str], most: int) -> list[str]:
    """The title with the number of lines, then the first of them."""
    lines = list(texts)
    if not lines:
        return []
    more = f" (first {most} of {len(lines)})" if len(lines) > most else ""
    return ["", f"**{title}**{more}", *(f"- {cell(_cut(text))}" for text in lines[:most])]


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
