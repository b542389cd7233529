"""Comma-separated values for programs: nine digits, and nothing where a figure is not known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any


def written(rows: Iterable[Mapping[str, Any]], names: tuple[str, ...] = ()) -> str:
    rows = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, names or tuple(rows[0] if rows else ("operation",)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else value
