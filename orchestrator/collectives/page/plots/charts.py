"""The data of the charts of a collective run, as JSON for the page's script: rows, bandwidths, distributions and delays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ....views import quantities
from ...views import Case, Measured, Row, factor, phrases, table
from . import bandwidth, distributions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Numbers of all curves together: a page stays below a megabyte. Of a curve at least and at most so many points.
NUMBERS, FEW, MANY = 60_000, 24, 300


def document(measured: Measured) -> Markup:
    """JSON that cannot end the script element that holds it.

    ``rows``: {group, bytes, cells} of the table. ``bandwidth``: per group {sizes, line, series: [{name, measured, model}]} in
    10^9 bytes/s. ``cases``: {group, bytes, name, times, chunks, delays, transfers}, each curve as [x, y]: distributions over
    milliseconds, and milliseconds over seconds since the first iteration.
    """
    made = table.table(measured)
    groups = bandwidth.kinds(measured)
    value = {
        "groups": [title for title, _ in made.groups],
        "sizes": {str(row.case.bytes): quantities.size(row.case.bytes) for row in measured.rows if row.case.bytes},
        "rows": _rows(measured, made),
        "bandwidth": [_bandwidth(measured, rows) for rows in groups.values()],
        "cases": _cases(measured),
    }
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704 (no markup is left in it)


def _rows(measured: Measured, made: table.Table) -> list[dict[str, Any]]:
    cells = [(number, row) for number, (_, rows) in enumerate(made.groups) for row in rows]
    grouped: dict[str, list[Row]] = {}
    for row in measured.rows:
        grouped.setdefault(phrases.kind(row.case), []).append(row)
    cases = [row.case for rows in grouped.values() for row in rows]
    return [
        {
            "group": number,
            "bytes": case.bytes,
            "cells": [quantities.size(case.bytes) if case.bytes else "-", *texts[1:]],
        }
        for (number, texts), case in zip(cells, cases, strict=True)
    ]


def _bandwidth(measured: Measured, rows: list[Row]) -> dict[str, Any]:
    sizes = sorted({row.case.bytes for row in rows})
    names = list(dict.fromkeys(row.case.algorithm for row in rows))
    by_case = {(row.case.algorithm, row.case.bytes): row for row in rows}
    rate = measured.setting.link.rate
    series = []
    for name in names:
        known = [by_case.get((name, size)) for size in sizes]
        series.append(
            {
                "name": name,
                "measured": [_short(row.busbw) if row else None for row in known],
                "model": [model(row) if row else None for row in known],
            }
        )
    return {"sizes": sizes, "line": _short(rate / 8e9) if rate else None, "series": series}


def model(row: Row) -> float | None:
    """The bus bandwidth that the model's time means."""
    if not row.model_s:
        return None
    return _short(row.case.bytes / row.model_s / 1e9 * factor(row.case.operation, row.case.world))


def _cases(measured: Measured) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(phrases.kind(row.case) for row in measured.rows))
    cases = [row.case for row in measured.rows]
    points = max(FEW, min(MANY, NUMBERS // (8 * max(len(cases), 1))))
    begin = min((float(spans.start.min()) for spans, _, _ in measured.data.values() if spans.start.size), default=0.0)
    return [{"group": kinds.index(phrases.kind(case)), **_case(measured, case, begin, points)} for case in cases]


def _case(measured: Measured, case: Case, begin: float, points: int) -> dict[str, Any]:
    spans, _, moved = measured.data[case.number]
    times = spans.times("max_rank") * 1000
    made: dict[str, Any] = {"bytes": case.bytes, "name": case.algorithm}
    if times.size:
        made["times"] = _curve(times, points)
        made["delays"] = _pairs(*distributions.thinned(spans.end.max(axis=1) - begin, times, points))
    if moved is not None and moved.seconds.size:
        seconds = moved.seconds.reshape(-1) * 1000
        made["chunks"] = _curve(seconds, points)
        made["transfers"] = _pairs(*distributions.thinned((moved.end - begin).reshape(-1), seconds, points))
    return made


def _curve(samples: Floats, points: int) -> list[list[float | None]]:
    """Quantiles and the maximum: (milliseconds, part of the samples that took at most that)."""
    x, y = distributions.curve(samples, points)
    return _pairs(x, y)


def _pairs(x: Floats, y: Floats) -> list[list[float | None]]:
    import numpy as np

    order = np.argsort(x, kind="stable")
    return [[_short(float(value)) for value in x[order]], [_short(float(value)) for value in y[order]]]


def _short(value: float | None) -> float | None:
    """Five digits are finer than a pixel."""
    return None if value is None else float(f"{value:.5g}")
