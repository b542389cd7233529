"""Trends of metrics: lines with sparklines, a table by night and node, CSV, pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.render.terminal import Terminal
from ...model.errors import UsageError

if TYPE_CHECKING:
    from ..index.entries import Trend, TrendPoint

_BLOCKS = "▁▂▃▄▅▆▇█"
_MISSING = "·"
#: Columns of a table by night, notes that are printed, and nights of a sparkline.
MOST_NODES, MOST_NOTES, MOST_NIGHTS = 8, 5, 60
#: Panels of a picture.
MOST = 12


def warn(terminal: Terminal, notes: Sequence[str]) -> None:
    """The first notes of the index, and how many there are more."""
    for note in notes[:MOST_NOTES]:
        terminal.warn(note)
    if len(notes) > MOST_NOTES:
        terminal.warn(f"{len(notes) - MOST_NOTES} more of these; --json lists all")


def show(terminal: Terminal, trends: Sequence[Trend], *, by_night: bool) -> None:
    """A line per node; ``by_night``: also a table of the nights."""
    for trend in trends:
        terminal.line(terminal.style(title(trend), "head"))
        terminal.line(terminal.style(f"  {context(trend)}", "dim"))
        rows = [_summary(trend, node) for node in trend.nodes]
        terminal.table(("NODE", "NIGHTS", "FIRST", "LAST", "CHANGE", f"TREND, {verdict_word(trend)}"), rows)
        if by_night:
            _show_nights(terminal, trend)


def title(trend: Trend) -> str:
    """``copy: copy rate, GB/s, higher is better``."""
    return f"{trend.trial}: {trend.metric.name}, {trend.metric.unit}, {trend.metric.better} is better"


def context(trend: Trend) -> str:
    """The bed, and what values share: ``bed lab; h100; dtype=float32``."""
    return "; ".join(part for part in (f"bed {trend.bed}", trend.key.hardware, trend.key.parameters) if part)


def verdict_word(trend: Trend) -> str:
    return "up is better" if trend.metric.better == "higher" else "down is better"


def sparkline(values: Sequence[float | None]) -> str:
    """A character per night, between the least and the greatest value; a dot where there is none."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return _MISSING * len(values)
    least, span = min(numbers), max(numbers) - min(numbers)
    middle = _BLOCKS[len(_BLOCKS) // 2 - 1]
    return "".join(
        _MISSING if value is None
        else _BLOCKS[round((value - least) / span * (len(_BLOCKS) - 1))] if span else middle
        for value in values
    )  # fmt: skip


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


def _summary(trend: Trend, node: str) -> tuple[str, ...]:
    values = by_night(trend, node)
    known = [value for value in values if value is not None]
    if not known:
        return node or "all", "0", "-", "-", "-", sparkline(values[-MOST_NIGHTS:])
    change = f"{(known[-1] / known[0] - 1) * 100:+.1f} %" if known[0] > 0 and len(known) > 1 else "-"
    ends = number(known[0]), number(known[-1])
    return node or "all", str(len(known)), *ends, change, sparkline(values[-MOST_NIGHTS:])


def _show_nights(terminal: Terminal, trend: Trend) -> None:
    nodes = trend.nodes
    if len(nodes) > MOST_NODES:
        terminal.line(f"  {len(nodes)} nodes: --node NAME or --csv lists the nights")
        return
    terminal.table(("NIGHT", "WHEN", *(node or "all" for node in nodes)), _night_rows(trend, nodes))


def _night_rows(trend: Trend, nodes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    points = {(point.night, point.node): point for point in trend.points}
    dates = {point.night: point.date for point in trend.points}
    for night, date in dates.items():
        cells = (_cell(points.get((night, node))) for node in nodes)
        yield str(night), date[:16].replace("T", " "), *cells


def _cell(point: TrendPoint | None) -> str:
    return number(point.value if point else None)


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
