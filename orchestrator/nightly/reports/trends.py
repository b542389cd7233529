"""Metrics over recorded nights: the median and the range of the nodes, and a line for each node that a finding names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from ...model.frozen import dataclass
from ...reports.page import svg
from ..night_judgement import Judged
from ..records import Key, Metric
from . import figure_units
from .night_report import NightReport
from .night_table import ORDER

#: Nights of a trend, the newest ones; nodes with a line of their own, those with the worst findings; pictures of a page.
NIGHTS, NODES, PICTURES = 30, 4, 12
WIDTH, HEIGHT, MARGIN = 360.0, 84.0, 7.0

#: A value -> its height in the picture.
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A metric under one key. ``fleet``: (low, median, high) of its nodes in each night, None where none was measured.

    ``lines``: node -> its values; ``state``: the worst of tonight's findings on it.
    """

    metric: Metric
    cell: str
    state: str
    nights: tuple[str, ...]
    fleet: tuple[tuple[float, float, float] | None, ...]
    lines: Mapping[str, tuple[float | None, ...]]


def trends(report: NightReport) -> tuple[Trend, ...]:
    """Draw the metrics that moved, worst first: those with a finding that is no pass."""
    moved: dict[tuple[str, Key], list[Judged]] = {}
    judged_cells = (*report.judgement.fleet, *report.judgement.cells)
    for judged in sorted(judged_cells, key=lambda judged: ORDER.index(judged.state)):
        if judged.state != "pass" and judged.key is not None:
            moved.setdefault((judged.finding.metric, judged.key), []).append(judged)
    drawn = (_trend(report, name, trend) for name, trend in moved.items())
    return tuple(trend for trend in drawn if trend is not None)[:PICTURES]


def _trend(report: NightReport, name: tuple[str, Key], judged: Sequence[Judged]) -> Trend | None:
    """None without an earlier night. A casual night has no records: its values are those that were judged."""
    records = [record for record in report.records if (record.metric.name, record.key) == name]
    values: dict[int, dict[str, float]] = {}
    for record in records:
        finite = [value for value in record.values if math.isfinite(value)]
        if finite:
            values.setdefault(record.night, {})[record.node] = statistics.median(finite)
    if not values:
        return None
    dates = {record.night: record.date for record in records}
    if not report.night.recorded:
        tonight = {
            entry.finding.node: entry.value for entry in report.judgement.cells
            if (entry.finding.metric, entry.key) == name and entry.finding.node is not None and entry.value is not None
        }  # fmt: skip
        number = max(values) + 1
        values[number], dates[number] = tonight, report.night.started
    numbers = sorted(values)[-NIGHTS:]
    by_night = [values[number] for number in numbers]
    nodes = tuple(dict.fromkeys(entry.finding.node for entry in judged if entry.finding.node))[:NODES]
    return Trend(
        metric=records[-1].metric, cell=judged[0].cell, state=judged[0].state,
        nights=tuple(dates.get(number) or f"night {number}" for number in numbers),
        fleet=tuple(measure_span(of_night.values()) for of_night in by_night),
        lines={node: tuple(of_night.get(node) for of_night in by_night) for node in nodes},
    )  # fmt: skip


def measure_span(values: Iterable[float]) -> tuple[float, float, float] | None:
    finite = list(values)
    return (min(finite), statistics.median(finite), max(finite)) if finite else None


def draw(trend: Trend, name: str) -> Markup:
    """A strip over each night shows its values while the pointer is on it. The last night is this one."""
    x, y, step = _scales(
        len(trend.nights),
        [value for line in (*zip(*filter(None, trend.fleet), strict=True), *trend.lines.values()) for value in line],
    )
    spans = [(at, span) for at, span in zip(x, trend.fleet, strict=True) if span]
    edge = [(at, y(span[2])) for at, span in spans] + [(at, y(span[0])) for at, span in reversed(spans)]
    shapes = [svg.element("polygon", points=" ".join(f"{at:.1f},{height:.1f}" for at, height in edge), class_="range")]
    lines = {"fleet": [span[1] if span else None for span in trend.fleet]}
    lines |= {f"node c{number}": list(line) for number, line in enumerate(trend.lines.values())}
    shapes += [_line(line, x, y, class_) for class_, line in lines.items()]
    shapes.append(svg.line(x[-1], 0.0, x[-1], HEIGHT, "tonight"))
    shapes += [
        svg.element("circle", cx=x[-1], cy=y(line[-1]), r=3.4, class_=class_)
        for class_, line in lines.items() if line[-1] is not None
    ]  # fmt: skip
    shapes += [
        svg.element("rect", svg.element("title", describe(trend, index)), x=at - step / 2, y=0, width=step,
                    height=HEIGHT, class_="hit")
        for index, at in enumerate(x)
    ]  # fmt: skip
    title = f"{figure_units.name(trend.metric.name)} over {len(trend.nights)} nights"
    return _picture(name, title, svg.element("desc", describe(trend, -1), id=f"{name}-d"), *shapes)


def sparkline(values: Sequence[float], name: str, title: str) -> Markup:
    """A line alone. ``title``: what it shows, for its tooltip and for screen readers."""
    x, y, _ = _scales(len(values), values)
    return _picture(name, title, _line(values, x, y, "fleet"))


def _picture(name: str, title: str, *shapes: Markup) -> Markup:
    return svg.element(
        "svg", svg.element("title", title, id=f"{name}-t"), *shapes, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="spark", role="img", aria_labelledby=f"{name}-t",
    )  # fmt: skip


def _scales(count: int, values: Iterable[float | None]) -> tuple[list[float], Scale, float]:
    """Return where each night is, the newest at the right edge; the height of a value; and the width of a night."""
    numbers = [value for value in values if value is not None]
    low, high = min(numbers), max(numbers)
    offset, factor = svg.scale(low, high, HEIGHT - MARGIN, MARGIN) if high > low else (HEIGHT / 2, 0.0)
    step = (WIDTH - 2 * MARGIN) / max(1, count - 1)
    return (
        [WIDTH - MARGIN - step * index for index in reversed(range(count))],
        lambda value: offset + factor * value,
        step,
    )


def describe(trend: Trend, index: int) -> str:
    """A night in words: its date, the median and the range of the nodes, and each node with a line."""
    span, unit = trend.fleet[index], trend.metric.unit
    text = f"{trend.nights[index]}: "
    if span is None:
        return f"{text}not measured"
    low, median, high = (figure_units.quantity(value, unit) for value in span)
    text += median + (f", {low} to {high}" if low != high else "")
    values = ((node, line[index]) for node, line in trend.lines.items())
    return text + "".join(
        f"; {node} {'not measured' if value is None else figure_units.quantity(value, unit)}" for node, value in values
    )


def _line(values: Sequence[float | None], x: Sequence[float], y: Scale, class_: str) -> Markup:
    """One path; a night without a value interrupts it. A single night between two gaps is a dot."""
    path, pen = "", "M"
    for at, value in zip(x, values, strict=True):
        path += f"{pen}{at:.1f},{y(value):.1f}{'h0' if pen == 'M' else ''}" if value is not None else ""
        pen = "M" if value is None else "L"
    return svg.element("path", d=path or None, class_=class_)
