"""Rows of the tables from run records and nights. Text and numbers of foreign bundles are made storable."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..gates.records import Key, Metric
    from ..night_judgement import NightJudgement
    from ..run_record import Measurement, RunRecord
    from ..suite import Night
    from .scan import Entry

Row = dict[str, Any]
#: node, metric, unit, better, ceiling, hardware, workload, parameters
Series = tuple[str, str, str, str, float | None, str, str, str]
SERIES = ("node", "metric", "unit", "better", "ceiling", "hardware", "workload", "parameters")
_LARGEST = 2**63 - 1


def of_run(record: RunRecord, entry: Entry) -> Row:
    """A row of ``runs`` without its numbers. The cell and the repeat come from the night's rows."""
    return {
        "directory": entry.directory, "run": text(record.run), "bed": text(record.bed), "trial": text(record.trial),
        "workload": text(record.workload), "started": text(record.started), "started_s": seconds(record.started),
        "outcome": text(record.outcome), "is_sealed": record.is_sealed, "exit": _integer(record.exit),
        "duration_s": finite(record.duration_s), "ttr_s": finite(record.ttr_s), "night": entry.night, "cell": "",
        "repeat": 0, "again": False,
        "signature": entry.signature, "notes": [text(note) for note in record.notes],
    }  # fmt: skip


def of_night(night: Night, judgement: NightJudgement | None, entry: Entry, *, is_closed: bool) -> Row:
    return {
        "directory": entry.directory, "name": text(night.name), "bed": text(night.bed), "suite": text(night.suite.name),
        "number": _integer(night.number) or 0, "started": text(night.started), "started_s": seconds(night.started),
        "is_closed": is_closed, "outcome": text(judgement.outcome) if judgement else None,
        "exit": _integer(judgement.exit) if judgement else None,
        "sentence": text(judgement.sentence) if judgement else "", "signature": entry.signature,
    }  # fmt: skip


def measured(measurements: Iterable[Measurement]) -> dict[Series, list[Any]]:
    """The values by series. Several measurements of a series are repeats of it."""
    values: dict[Series, list[Any]] = {}
    for measurement in measurements:
        metric, key = measurement.metric, measurement.key
        series = (
            text(measurement.node), text(metric.name), text(metric.unit), text(metric.better), finite(metric.ceiling),
            text(key.hardware), text(key.workload), text(key.parameters),
        )  # fmt: skip
        values.setdefault(series, []).extend(encoded(value) for value in measurement.values)
    return values


def versions(suspects: Mapping[str, Mapping[str, str]]) -> tuple[str, dict[str, dict[str, str]]]:
    document = {
        text(node): {text(name): text(version) for name, version in sorted(names.items())}
        for node, names in sorted(suspects.items())
    }
    return hashlib.sha256(msgspec.json.encode(document)).hexdigest(), document


def metric(row: Any) -> Metric:
    from ..gates.records import Metric

    return Metric(name=row.metric, unit=row.unit, better=row.better, ceiling=row.ceiling)


def key(row: Any) -> Key:
    from ..gates.records import Key

    return Key(hardware=row.hardware, workload=row.workload, parameters=row.parameters)


def encoded(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are text."""
    return value if math.isfinite(value) else str(value)


def decoded(values: Iterable[float | str]) -> tuple[float, ...]:
    return tuple(map(float, values))


def median(values: Iterable[float | str]) -> float | None:
    """Of the finite values; None if there is none."""
    numbers = sorted(value for value in map(float, values) if math.isfinite(value))
    middle = len(numbers) // 2
    if not numbers:
        return None
    return numbers[middle] if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2


def text(value: object) -> str:
    """Databases reject NUL and halves of a surrogate pair."""
    if isinstance(value, str) and value.isascii() and "\0" not in value:
        return value
    return str(value).encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def seconds(moment: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, in UTC unless it says otherwise; None for any other text."""
    try:
        parsed = datetime.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _integer(value: int | None) -> int | None:
    return None if value is None else max(-_LARGEST, min(_LARGEST, value))
