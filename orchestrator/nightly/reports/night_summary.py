"""Twenty lines of Markdown for a chat or a mail: the verdict, the table of what moved, trials that did not pass, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...reports.summary import cell, code, table_lines
from .night_report import NightReport, cells
from .night_table import grid, head, next_step, table

LINES = 20
#: Metrics of the table, and nodes; trials that did not pass.
METRICS, NODES, FAILED_ROWS = 6, 6, 3
#: Characters of a line.
WIDTH = 240


def render(report: NightReport) -> bytes:
    night, judgement = report.night, report.judgement
    shown = table(night, judgement)
    heads, rows = grid(shown, shown.shown[:METRICS], NODES)
    step = next_step(night, judgement, report.directory)
    lines = [
        f"# {judgement.word.upper()}: {cell(judgement.sentence)}",
        cell(head(night, judgement, shown)),
        *(["", *table_lines(heads, [[_cut(text) for text in texts] for _, texts in rows])] if rows else []),
        *([cell(shown.rest)] if shown.rest else []),
        *_list("Not passed", _rows(report), FAILED_ROWS),
        "",
        *([f"Next: {code(step)}"] if step else []),
        f"Report: {code(f'{report.directory}/report/index.html')}",
    ]
    return ("\n".join(lines[:LINES]) + "\n").encode(errors="replace")


def _rows(report: NightReport) -> Iterator[str]:
    for row in cells(report):
        if row.state not in ("passed", "skipped"):
            bad = sum(repeat.state not in ("passed", "skipped") for repeat in row.rows)
            how_many = f" ({bad} of {len(row.rows)} repeats)" if len(row.rows) > 1 else ""
            yield f"{row.cell}: {row.state}{how_many}" + (f": {row.reasons[0]}" if row.reasons else "")


def _list(title: str, texts: Iterable[str], most: int) -> list[str]:
    """The title with the number of lines, then the first of them."""
    lines = list(texts)
    if not lines:
        return []
    more = f" (first {most} of {len(lines)})" if len(lines) > most else ""
    return ["", f"**{title}**{more}", *(f"- {cell(_cut(text))}" for text in lines[:most])]


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
