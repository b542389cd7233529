"""The charts of a collective run: bandwidth over size with the model and the line rate, and of each case its times and delays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ...reports.page import chart
from ...reports.page.chart import Chart, Curve
from ...views import quantities
from ..views import Case, Measured, Row, case_table, factor, phrases

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Numbers of all curves together: a page stays below a megabyte. Of a curve at least and at most so many points.
NUMBERS, FEW, MANY = 60_000, 24, 300
#: Bandwidths and delays that lie further apart need a log axis; times, if the longest is so many times their median.
STEEP, TAIL = 20, 8
_TIMES = ("times", "time of an iteration, slowest rank, ms", "part of the iterations that took at most so long")
_CHUNKS = ("chunks", "delay of a chunk transfer, ms", "part of the transfers that took at most so long")


def document(measured: Measured) -> Markup:
    """JSON for the page's script.

    ``rows``: {group, bytes, cells} of the table. ``bandwidth``: a chart for each group. ``cases``: {group, bytes, charts}, for each
    size of a group.
    """
    made = case_table.table(measured)
    value = {
        "groups": [title for title, _ in made.groups],
        "sizes": {str(row.case.bytes): quantities.size(row.case.bytes) for row in measured.rows if row.case.bytes},
        "rows": _rows(measured, made),
        "bandwidth": [chart.plain(bandwidth(measured, rows)) for rows in kinds(measured).values()],
        "cases": [
            {"group": group, "bytes": size, "charts": [chart.plain(of_size) for of_size in charts]}
            for (group, size), charts in sizes(measured).items()
        ],
    }
    return chart.script_text(value)


def pictures(measured: Measured) -> dict[str, Chart]:
    """Name of a file -> the chart: of each group the bandwidths, and the times and delays of its largest size."""
    largest: dict[int, list[Chart]] = {}
    for (group, _), charts in sorted(sizes(measured).items()):
        largest[group] = charts
    drawn = [*enumerate(bandwidth(measured, rows) for rows in kinds(measured).values())]
    drawn += [(group, of_size) for group, charts in largest.items() for of_size in charts]
    return {f"{made.name}-{group}" if group else made.name: made for group, made in drawn}


def kinds(measured: Measured) -> dict[str, list[Row]]:
    """The rows with a bus bandwidth, grouped by the kind of case."""
    groups: dict[str, list[Row]] = {}
    for row in measured.rows:
        if row.busbw:  # one rank alone has none
            groups.setdefault(phrases.kind(row.case), []).append(row)
    return groups


def bandwidth(measured: Measured, rows: list[Row]) -> Chart:
    """Draw one kind of cases: for each algorithm a curve, and one of its model."""
    known = sorted({row.case.bytes for row in rows})
    curves = []
    for number, name in enumerate(dict.fromkeys(row.case.algorithm for row in rows)):
        by_size = {row.case.bytes: row for row in rows if row.case.algorithm == name}
        own = [(size, by_size[size].busbw) for size in known if size in by_size]
        modelled = [(size, model(by_size[size])) for size in known if size in by_size]
        curves.append(_curve(name, own, "points", number))
        curves.append(_curve(f"{name}, model", modelled, "dashed", number))
    if rate := measured.setting.link.rate:
        curves.append(_curve("line rate", [(size, rate / 8e9) for size in known], "limit", 0))
    curves = [curve for curve in curves if curve.x]
    is_steep = _is_steep(curves)
    most = None if is_steep else 1.08 * max(max(curve.y) for curve in curves)
    return Chart(
        name="bandwidth", title=f"Bus bandwidth, {phrases.kind(rows[0].case)}", x="size", y="bus bandwidth, GB/s", curves=tuple(curves),
        is_log=(True, is_steep), most=most, ticks={size: quantities.size(size) for size in known},
    )  # fmt: skip


def model(row: Row) -> float | None:
    """The bus bandwidth that the model's time means."""
    return row.case.bytes / row.model_s / 1e9 * factor(row.case.operation, row.case.world) if row.model_s else None


def sizes(measured: Measured) -> dict[tuple[int, int], list[Chart]]:
    """(group, bytes) -> the charts of the cases of that size, in the order of the page."""
    titles = list(dict.fromkeys(phrases.kind(row.case) for row in measured.rows))
    cases: dict[tuple[int, int], list[Case]] = {}
    for row in measured.rows:
        cases.setdefault((titles.index(phrases.kind(row.case)), row.case.bytes), []).append(row.case)
    points = max(FEW, min(MANY, NUMBERS // (8 * max(len(measured.rows), 1))))
    return {key: list(_of_size(measured, among, points)) for key, among in cases.items()}


def _of_size(measured: Measured, cases: list[Case], points: int) -> Iterator[Chart]:
    begin = min((float(spans.start.min()) for spans, _, _ in measured.data.values() if spans.start.size), default=0.0)
    title = phrases.kind(cases[0]) + (f", {quantities.size(cases[0].bytes)}" if cases[0].bytes else "")
    times: dict[int, Floats] = {}
    chunks: dict[int, Floats] = {}
    delays: list[Curve] = []
    for number, case in enumerate(cases):
        spans, _, moved = measured.data[case.number]
        if moved is not None and moved.seconds.size:
            seconds = moved.seconds.reshape(-1) * 1000
            chunks[number] = seconds
            moments = thinned((moved.end - begin).reshape(-1), seconds, points)
            delays.append(_ordered(f"{case.algorithm}, transfers", *moments, "dots", number))
        seconds = spans.times("max_rank") * 1000
        if seconds.size:
            times[number] = seconds
            moments = thinned(spans.end.max(axis=1) - begin, seconds, points)
            delays.append(_ordered(f"{case.algorithm}, iterations", *moments, "points", number))
    for (name, x, y), samples in ((_TIMES, times), (_CHUNKS, chunks)):
        if samples:
            curves = tuple(_distribution(cases[number], number, samples[number], points) for number in samples)
            counts = " and ".join(f"{count:,}" for count in sorted({known.size for known in samples.values()}))
            is_long = any(_has_long_tail(known) for known in samples.values())
            named = f"{title}, n = {counts}"
            yield Chart(name=name, title=named, x=x, y=y, curves=curves, is_log=(is_long, False), most=1.05)
    if delays:
        since = "time since the first iteration, s"
        yield Chart(
            name="delays", title=title, x=since, y="ms", curves=tuple(delays), is_log=(False, _is_steep(delays))
        )


def _distribution(case: Case, number: int, samples: Floats, points: int) -> Curve:
    """The part of the samples that took at most that long."""
    x, y = map(chart.rounded, curve(samples, points))
    return Curve(name=case.algorithm, x=x, y=y, kind="steps", number=number)


def _has_long_tail(samples: Floats) -> bool:
    """Return whether a linear axis would show little beside the tail."""
    import numpy as np

    return bool(samples.max() > TAIL * np.median(samples) > 0)


def _ordered(name: str, x: Floats, y: Floats, kind: chart.Kind, number: int) -> Curve:
    import numpy as np

    order = np.argsort(x, kind="stable")
    return Curve(name=name, x=chart.rounded(x[order]), y=chart.rounded(y[order]), kind=kind, number=number)


def _curve(name: str, points: list[tuple[int, float | None]], kind: chart.Kind, number: int) -> Curve:
    known = [(size, value) for size, value in points if value is not None]
    y = chart.rounded(value for _, value in known)
    return Curve(name=name, x=[size for size, _ in known], y=y, kind=kind, number=number)


def _is_steep(curves: list[Curve]) -> bool:
    values = [value for made in curves for value in made.y if value > 0]
    return bool(values) and max(values) > STEEP * min(values)


def _rows(measured: Measured, made: case_table.Table) -> list[dict[str, Any]]:
    cells = [(number, row) for number, (_, rows) in enumerate(made.groups) for row in rows]
    grouped: dict[str, list[Case]] = {}
    for row in measured.rows:
        grouped.setdefault(phrases.kind(row.case), []).append(row.case)
    cases = [case for of_kind in grouped.values() for case in of_kind]
    return [
        {
            "group": number,
            "bytes": case.bytes,
            "cells": [quantities.size(case.bytes) if case.bytes else "-", *texts[1:]],
        }
        for (number, texts), case in zip(cells, cases, strict=True)
    ]


def curve(samples: Floats, points: int) -> tuple[Floats, Floats]:
    """(value, part of the samples that are at most that), ascending; of many samples every n-th and the tail."""
    import numpy as np

    ranked = np.sort(samples)
    ranks = np.arange(1, ranked.size + 1)
    if ranked.size > points:
        tail = np.arange(max(0, ranked.size - points // 4), ranked.size)
        body = np.linspace(0, ranked.size - 1, points).astype(int)
        chosen = np.union1d(body, tail)
        ranked, ranks = ranked[chosen], ranks[chosen]
    return ranked, ranks / samples.size


def thinned(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """Keep about ``most`` points: in each stretch of ``x`` the lowest and the highest, so that no outlier is lost."""
    import numpy as np

    if x.size <= most:
        return x, y
    order = np.argsort(x, kind="stable")
    parts = np.array_split(order, most // 2)
    chosen = np.unique([spot for part in parts for spot in (part[y[part].argmin()], part[y[part].argmax()])])
    return x[chosen], y[chosen]
