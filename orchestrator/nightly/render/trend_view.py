"""Trends of metrics: the table of the newest night, the values by night and node, CSV, pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.render.terminal import Terminal
from ...model.errors import UsageError
from ..reports import night_table
from . import night_lines

if TYPE_CHECKING:
    from ..index.entries import Trend, TrendPoint
    from ..night_judgement import NightJudgement
    from ..suite import Night

#: Columns of a table by night, and notes that are printed.
MOST_NODES, MOST_NOTES = 8, 5
#: Panels of a picture.
MOST = 12


def warn(terminal: Terminal, notes: Sequence[str]) -> None:
    """The first notes of the index, and how many there are more."""
    for note in notes[:MOST_NOTES]:
        terminal.warn(note)
    if len(notes) > MOST_NOTES:
        terminal.warn(f"{len(notes) - MOST_NOTES} more of these; --json lists all")


def show(
    terminal: Terminal, trends: Sequence[Trend], newest: Iterable[tuple[Night, NightJudgement]], *, by_night: bool
) -> None:
    """The table of each bed's newest night, worst first, as the night printed it; ``by_night``: then the values of each night."""
    for night, judgement in newest:
        shown = night_table.table(night, judgement)
        terminal.line(night_table.head(night, judgement, shown))
        night_lines.show_lines(terminal, shown, shown.lines)
    for trend in trends if by_night else ():
        terminal.line(terminal.style(title(trend), "head"))
        terminal.line(terminal.style(f"  {context(trend)}", "dim"))
        if len(trend.nodes) > MOST_NODES:
            terminal.line(f"  {len(trend.nodes)} nodes: --node NAME or --csv lists the nights")
        else:
            terminal.table(("NIGHT", "WHEN", *(node or "all" for node in trend.nodes)), _night_rows(trend))
    if not by_night:
        terminal.line(f"{len(trends)} trends: --metric, --bed or --csv for the values of each night")


def title(trend: Trend) -> str:
    """``copy: copy rate, GB/s, higher is better``."""
    return f"{trend.trial}: {trend.metric.name}, {trend.metric.unit}, {trend.metric.better} is better"


def context(trend: Trend) -> str:
    """The bed, and what values share: ``bed lab; h100; dtype=float32``."""
    return "; ".join(part for part in (f"bed {trend.bed}", trend.key.hardware, trend.key.parameters) if part)


def csv_text(trends: Iterable[Trend]) -> str:
    """A line per night and node. ``repeats``: the values of all repeats, separated by blanks."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(
        ("bed", "trial", "metric", "unit", "better", "hardware", "workload", "parameters", "night", "name", "date", "node",
         "median", "repeats")
    )  # fmt: skip
    for trend in trends:
        about = (trend.bed, trend.trial, trend.metric.name, trend.metric.unit, trend.metric.better,
                 trend.key.hardware, trend.key.workload, trend.key.parameters)  # fmt: skip
        writer.writerows((*about, *cells) for cells in map(_cells, trend.points))
    return target.getvalue()


def _cells(point: TrendPoint) -> tuple[object, ...]:
    median = "" if point.value is None else repr(point.value)
    return point.night, point.name, point.date, point.node, median, " ".join(map(repr, point.values))


def by_night(trend: Trend, node: str) -> list[float | None]:
    values = {point.night: point.value for point in trend.points if point.node == node}
    return [values.get(night) for night in dict.fromkeys(point.night for point in trend.points)]


def number(value: float | None) -> str:
    """Four significant digits."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _night_rows(trend: Trend) -> Iterator[tuple[str, ...]]:
    values = {(point.night, point.node): number(point.value) for point in trend.points}
    for night, date in {point.night: point.date for point in trend.points}.items():
        yield str(night), date[:16].replace("T", " "), *(values.get((night, node), "-") for node in trend.nodes)


def draw(trends: Sequence[Trend], file: Path) -> None:
    """Draw trends as SVG or PNG: a panel per trend, a line per node.

    Raises UsageError without matplotlib, or for more trends than fit into a picture.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UsageError("--plot: matplotlib is not installed", hint="pip install 'ccbed[plots]'") from None
    if len(trends) > MOST:
        raise UsageError(
            f"--plot: {len(trends)} trends, at most {MOST} fit", hint="choose with --metric, --bed, --node"
        )
    figure = Figure(figsize=(9, 3.2 * len(trends)), layout="constrained")
    for number, trend in enumerate(trends, start=1):
        axes = figure.add_subplot(len(trends), 1, number)
        nights = list(dict.fromkeys(point.night for point in trend.points))
        for node in trend.nodes:
            values = [float("nan") if value is None else value for value in by_night(trend, node)]
            axes.plot(nights, values, marker="o", markersize=3, linewidth=1, label=node or "all")
        heading = f"{title(trend)}\n{context(trend)}"
        axes.set_title(heading, fontsize=8, loc="left", wrap=True, parse_math=False)
        axes.set_xlabel("night")
        axes.set_ylabel(trend.metric.unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(trend.nodes) <= MOST:
            axes.legend(fontsize=7, ncols=4)
    figure.savefig(file)
