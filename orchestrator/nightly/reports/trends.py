"""Metrics over recorded nights: the median and the range of the nodes, and a line for each node that a finding names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from ...model.frozen import dataclass
from ...reports.page import svg
from ..gates.nights import Key, Metric, Record
from .night_report import FINDING_ORDER, NightReport, quantity, worst

#: Nights of a trend, the newest ones.
NIGHTS = 30
#: Nodes with a line of their own: those with the worst findings.
NODES = 4
#: Pictures of a page, and the elements of one without its hover values.
PICTURES, FRAME = 60, 28
WIDTH, HEIGHT, MARGIN = 360.0, 84.0, 7.0

#: A value -> its height in the picture.
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A metric under one key. ``fleet``: (low, median, high) of its nodes in each night, None where none was measured.

    ``lines``: node -> its values. ``state``: the worst of tonight's findings on it. ``is_tonight``: whether the last night is this one.
    """

    metric: Metric
    key: Key
    cell: str
    state: str
    nights: tuple[str, ...]
    fleet: tuple[tuple[float, float, float] | None, ...]
    parts: int
    lines: Mapping[str, tuple[float | None, ...]]
    is_tonight: bool
    noun: str = "node"


def trends(report: NightReport) -> tuple[Trend, ...]:
    """Those with findings first. A metric has a picture if a gate read it."""
    cells = report.judged_metrics()
    groups: dict[tuple[str, Key], list[Record]] = {}
    for record in report.records:
        if (record.metric.name, record.key) in cells:
            groups.setdefault((record.metric.name, record.key), []).append(record)
    judged: dict[tuple[str, Key], list[tuple[str, str]]] = {}
    for entry in report.judgement.findings:
        if entry.key is not None:
            judged.setdefault((entry.finding.metric, entry.key), []).append((entry.state, entry.finding.node or ""))
    drawn = [
        trend for name, records in groups.items()
        if (trend := _trend(report, records, judged.get(name, []), cells[name])) is not None
    ]  # fmt: skip
    return tuple(sorted(drawn, key=lambda trend: (_rank(trend.state), trend.cell, trend.metric.name)))


def _rank(state: str) -> int:
    return FINDING_ORDER.index(state) if state in FINDING_ORDER else len(FINDING_ORDER)


def _trend(
    report: NightReport, records: Sequence[Record], judged: Sequence[tuple[str, str]], cell: str
) -> Trend | None:
    values = _by_night(records, report)
    if not values:
        return None
    recorded = {record.night for record in report.records} | ({report.night.number} if report.night.recorded else set())
    numbers = sorted(number for number in recorded | values.keys() if number >= min(values))[-NIGHTS:]
    dates = {record.night: record.date for record in records}
    marked = sorted(((state, node) for state, node in judged if node and state in ("fail", "xpass", "warn", "xfail")),
                    key=lambda entry: (_rank(entry[0]), entry[1]))  # fmt: skip
    nodes = tuple(dict.fromkeys(node for _, node in marked))[:NODES]
    by_night = [values.get(number, {}) for number in numbers]
    return Trend(
        metric=records[-1].metric, key=records[-1].key, cell=cell, state=worst((state for state, _ in judged), FINDING_ORDER),
        nights=tuple(_label(number, dates, report) for number in numbers),
        fleet=tuple(measure_span(of_night.values()) for of_night in by_night),
        parts=len({node for of_night in by_night for node in of_night}), noun=noun(by_night),
        lines={node: tuple(of_night.get(node) for of_night in by_night) for node in nodes},
        is_tonight=numbers[-1] == report.night.number or numbers[-1] not in recorded,
    )  # fmt: skip


def noun(values: Iterable[Mapping[str, float]]) -> str:
    """What a metric is of: whole runs, nodes, their devices, or directions between two of them."""
    names = {name for of_night in values for name in of_night}
    if names == {""}:
        return "run"
    if any("->" in name for name in names):
        return "direction"
    return "device" if any(":" in name for name in names) else "node"


def _label(number: int, dates: Mapping[int, str], report: NightReport) -> str:
    """A night as people know it. A casual night has no number."""
    date = dates.get(number) or (report.night.started if number == report.night.number else "")
    is_casual = not date and number > max(record.night for record in report.records)
    return report.night.started if is_casual else date or f"night {number}"


def _by_night(records: Sequence[Record], report: NightReport) -> dict[int, dict[str, float]]:
    """Night -> node -> median. A casual night has no records: its values are those that were judged."""
    values: dict[int, dict[str, float]] = {}
    for record in records:
        finite = [value for value in record.values if math.isfinite(value)]
        if finite:
            values.setdefault(record.night, {})[record.node] = statistics.median(finite)
    if not report.night.recorded and values:
        casual = {
            entry.finding.node: entry.value
            for entry in report.judgement.findings
            if entry.key == records[-1].key and entry.finding.metric == records[-1].metric.name
            if entry.finding.node and entry.value is not None and math.isfinite(entry.value)
        }
        if casual:
            values[max(record.night for record in report.records) + 1] = casual
    return values


def measure_span(values: Iterable[float]) -> tuple[float, float, float] | None:
    finite = list(values)
    return (min(finite), statistics.median(finite), max(finite)) if finite else None


def pictures(shown: Sequence[Trend], elements: int) -> Iterator[tuple[Trend, Markup]]:
    """As many as fit into so many elements. Those without a finding come last; they lose their hover values first."""
    for index, trend in enumerate(shown[:PICTURES]):
        left = elements - FRAME * min(PICTURES, len(shown) - index)
        has_values = left >= 2 * len(trend.nights)
        elements -= FRAME + (2 * len(trend.nights) if has_values else 0)
        if elements < 0:
            return
        yield trend, draw(trend, f"trend{index}", has_values=has_values)


def draw(trend: Trend, name: str, *, has_values: bool = True) -> Markup:
    """``has_values``: a strip over each night shows its values while the pointer is on it."""
    numbers = [value for span in trend.fleet if span for value in span]
    numbers += [value for line in trend.lines.values() for value in line if value is not None]
    low, high = min(numbers), max(numbers)
    bottom, top = (HEIGHT - MARGIN, MARGIN) if high > low else (HEIGHT / 2, HEIGHT / 2)
    offset, factor = svg.scale(low, high, bottom, top) if high > low else (HEIGHT / 2, 0.0)
    step = (WIDTH - 2 * MARGIN) / max(1, len(trend.nights) - 1)
    x = [WIDTH - MARGIN - step * index for index in range(len(trend.nights))][::-1]

    def y(value: float) -> float:
        return offset + factor * value

    shapes = [*_band(trend, x, y), *_line([span[1] if span else None for span in trend.fleet], x, y, "fleet")]
    for number, line in enumerate(trend.lines.values()):
        shapes += _line(line, x, y, f"node c{number}")
    if trend.is_tonight:
        shapes.append(svg.line(x[-1], 0.0, x[-1], HEIGHT, "tonight"))
        shapes += _points(trend, x[-1], y)
    if has_values:
        shapes += [
            svg.element("rect", svg.element("title", describe(trend, index)), x=at - step / 2, y=0, width=step,
                        height=HEIGHT, class_="hit")
            for index, at in enumerate(x)
        ]  # fmt: skip
    title = f"{trend.metric.name} over {len(trend.nights)} nights"
    return svg.element(
        "svg", svg.element("title", title, id=f"{name}-t"), svg.element("desc", describe(trend, -1), id=f"{name}-d"), *shapes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="spark", role="img",
        aria_labelledby=f"{name}-t {name}-d",
    )  # fmt: skip


def sparkline(values: Sequence[float], name: str, title: str) -> Markup:
    """A line alone. ``title``: what it shows, for its tooltip and for screen readers."""
    low, high = min(values), max(values)
    offset, factor = svg.scale(low, high, HEIGHT - MARGIN, MARGIN) if high > low else (HEIGHT / 2, 0.0)
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    x = [MARGIN + step * index for index in range(len(values))]
    line = _line(values, x, lambda value: offset + factor * value, "fleet")
    return svg.element(
        "svg", svg.element("title", title, id=f"{name}-t"), *line, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="spark", role="img", aria_labelledby=f"{name}-t",
    )  # fmt: skip


def describe(trend: Trend, index: int) -> str:
    """A night in words: its date, the median and the range of the nodes, and each node with a line."""
    span, unit = trend.fleet[index], trend.metric.unit
    text = f"{trend.nights[index]}: "
    if span is None:
        return f"{text}not measured"
    low, median, high = (quantity(value, unit) for value in span)
    text += median + (f", {low} to {high}" if low != high else "")
    values = ((node, line[index]) for node, line in trend.lines.items())
    return text + "".join(
        f"; {node} {'not measured' if value is None else quantity(value, unit)}" for node, value in values
    )


def _band(trend: Trend, x: Sequence[float], y: Scale) -> Iterator[Markup]:
    """A polygon for each stretch of nights that were measured."""
    for stretch in _stretches(trend.fleet):
        spans = [(x[index], span) for index in stretch if (span := trend.fleet[index]) is not None]
        edge = [(at, y(span[2])) for at, span in spans] + [(at, y(span[0])) for at, span in reversed(spans)]
        yield svg.element("polygon", points=" ".join(f"{at:.1f},{height:.1f}" for at, height in edge), class_="range")


def _line(values: Sequence[float | None], x: Sequence[float], y: Scale, class_: str) -> Iterator[Markup]:
    """One path; a night without a value interrupts it. A single night between two gaps is a short dash."""
    path = ""
    for stretch in _stretches(values):
        points = [f"{x[index]:.1f},{y(value):.1f}" for index in stretch if (value := values[index]) is not None]
        path += "M" + "L".join(points) + ("h1" if len(points) == 1 else "")
    if path:
        yield svg.element("path", d=path, class_=class_)


def _points(trend: Trend, x: float, y: Scale) -> Iterator[Markup]:
    span = trend.fleet[-1]
    if span is not None:
        yield svg.element("circle", cx=x, cy=y(span[1]), r=3.4, class_="fleet")
    for number, line in enumerate(trend.lines.values()):
        if (value := line[-1]) is not None:
            yield svg.element("circle", cx=x, cy=y(value), r=3.4, class_=f"node c{number}")


def _stretches(values: Sequence[object]) -> Iterator[list[int]]:
    """Indices of neighbours that have a value."""
    stretch: list[int] = []
    for index, value in enumerate(values):
        if value is not None:
            stretch.append(index)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
