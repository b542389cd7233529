"""The results for programs that read those of nccl-tests: its JSON (``-J`` with ``-I 1``, version 3: its src/util.cu), and its text.

One reader of the JSON is tools/analyze_perf_json.py of nccl-tests; of the text, cloudai. Names and units are those of nccl-tests: times
in microseconds, bandwidths in 10^9 bytes/s, booleans as strings, percentiles by its definition. ``time`` is the mean over the iterations,
here of the time from first start to last end. Only in-place operations are measured: ``out_of_place`` is null, and
``out_of_place_per_iter`` is absent; in the text these columns are N/A. ``ccbed`` holds ccbed's own percentiles. One document holds all
operations: ``experiment_name`` has the name of the program of nccl-tests; the text is one file for each operation and algorithm. With the
two decimals of nccl-tests a small bandwidth would be 0.00; there each figure has as many digits as its column can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ...model import schedule
from ...model.run import Run
from ...reports.page import page_facts
from ..views import Measured, Row

VERSION = 3
_PROGRAMS = {
    "all-reduce": "all_reduce_perf", "all-gather": "all_gather_perf", "reduce-scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf", "reduce": "reduce_perf", "gather": "gather_perf", "scatter": "scatter_perf",
    "all-to-all": "alltoall_perf", "send-recv": "sendrecv_perf",
}  # fmt: skip
_TYPES = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16", "int8": "int8", "uint8": "uint8",
    "int32": "int32", "int64": "int64",
}  # fmt: skip


def document(run: Run, measured: Measured) -> str:
    rows = shown(measured)
    value = {
        "version": VERSION,
        "start_time": _moment(run, 0),
        "args": ["ccbed", "run", run.trial.name],
        "env": [],
        "nccl_version": 0,
        "config": _config(measured, rows),
        "results": [_result(measured, row) for row in rows],
        "out_of_bounds": {
            "count": measured.wrong,
            "okay": _bool(measured.wrong == 0) if measured.setting.verify else "unchecked",
        },
        "average_bus_bandwidth": {"bandwidth": _figure(average(rows)), "okay": "unchecked"},
        "errors": [],
        "end_time": _moment(run, -1),
    }
    return json.dumps(value, indent=1) + "\n"


def average(rows: Sequence[Row]) -> float:
    """The mean of the known bus bandwidths; nan if none is known."""
    known = [row.busbw for row in rows if row.busbw is not None]
    return sum(known) / len(known) if known else math.nan


def shown(measured: Measured) -> list[Row]:
    """The rows for a table of sizes: measured cases, except barriers."""
    return [row for row in measured.rows if row.case.bytes and row.trial]


def _config(measured: Measured, rows: list[Row]) -> dict[str, Any]:
    sizes = [row.case.bytes for row in rows]
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": min(sizes, default=0),
        "maximum_bytes": max(sizes, default=0),
        "step_factor": 2,
        "warmup_iters": measured.setting.warmup,
        "iterations": max((row.case.iterations for row in rows), default=0),
        "aggregated_iterations": 1,
        "validation": int(measured.setting.verify),
        "graph": 0,
        "blocking_collectives": _bool(value=True),
        "per_iter_timing": _bool(value=True),
        "per_iter_skip": 0,
        "parallel_init": _bool(value=False),
        "devices": [_device(measured, rank, node) for rank, node in sorted(measured.setting.nodes.items())],
    }


def _device(measured: Measured, rank: int, node: str) -> Mapping[str, Any]:
    """``device``: the local rank."""
    before = [number for number, name in measured.setting.nodes.items() if name == node and number < rank]
    about = {"rank": rank, "group": 0, "pid": 0, "hostname": node, "device": len(before)}
    return {**about, "device_hex": "0000:00:00", "device_info": "CPU"}


def _result(measured: Measured, row: Row) -> dict[str, Any]:
    case, trial = row.case, row.trial
    assert trial is not None
    return {
        "size": case.bytes,
        "count": count(row),
        **dict(zip(("type", "redop", "root"), about(row), strict=True)),
        "out_of_place": None,
        "in_place": _body(row),
        "in_place_per_iter": _iterations(measured, row),
        "actual_iterations": trial.count,
        "experiment_name": experiment(row),
        "ccbed": _robust(row),
    }


def _robust(row: Row) -> dict[str, float | str]:
    """Percentiles, under ccbed's own names: ``cct`` from first start to last end, ``trial`` of the slowest rank's own duration."""
    spreads = (("cct", row.cct), ("trial", row.trial))
    return {
        f"{name}_{part}_us": _figure(getattr(spread, part) * 1e6)
        for name, spread in spreads
        if spread
        for part in ("p50", "p95")
    }


def experiment(row: Row) -> str:
    """The program of nccl-tests that measures this operation, and ccbed's algorithm."""
    return f"{_PROGRAMS.get(row.case.operation, row.case.operation)} {row.case.algorithm}"


def _iterations(measured: Measured, row: Row) -> dict[str, Any]:
    """The time of each iteration by its slowest rank, and by every rank if all ranks of the world take part."""
    spans = measured.data[row.case.number][0]
    times = spans.times("max_rank")
    ordered, count = sorted(float(time) for time in times), int(times.size)
    mean, deviation = float(times.mean()), float(times.std())
    figures = {
        "min": ordered[0], "max": ordered[-1], "avg": mean, "p50": ordered[count // 2], "p95": ordered[_percentile_index(count, 95)],
        "p99": ordered[_percentile_index(count, 99)], "stdev": deviation,
    }  # fmt: skip
    everybody = spans.ranks == tuple(sorted(measured.setting.nodes)) and len(spans.ranks) > 1
    ranks = (spans.end - spans.start).T if everybody else ()
    return {
        "skipped_iterations": 0,
        **{f"{name}_us": _figure(seconds * 1e6) for name, seconds in figures.items()},
        "cv_pct": _figure(100 * deviation / mean if mean else 0.0),
        "times_us": _microseconds(times),
        **({"per_process_max_times_us": [_microseconds(time) for time in ranks]} if everybody else {}),
    }


def _percentile_index(count: int, percent: int) -> int:
    """The index of a percentile among ``count`` ordered times, as nccl-tests computes it."""
    return min(count - 1, (count * percent + 99) // 100 - 1)


def _microseconds(times: Iterable[float]) -> list[float | str]:
    return [_figure(float(time) * 1e6) for time in times]


def about(row: Row) -> tuple[str, str, str]:
    """Type, operator and root by the names of nccl-tests; the root in the width that nccl-tests prints."""
    case = row.case
    root = case.root if case.operation in schedule.ROOTED else -1
    return (
        _TYPES.get(case.dtype, case.dtype),
        case.operator if case.operation in schedule.REDUCING else "none",
        f"{root:>6}",
    )


def count(row: Row) -> int:
    """Elements of one rank's share where the size is the total of all ranks, as nccl-tests prints it."""
    case = row.case
    return case.count // max(case.world, 1) if case.operation in schedule.IN_BLOCKS else case.count


def _body(row: Row) -> dict[str, Any]:
    return {
        "time": _figure(math.nan if row.mean_s is None else row.mean_s * 1e6),
        "alg_bw": _figure(math.nan if row.algbw is None else row.algbw),
        "bus_bw": _figure(math.nan if row.busbw is None else row.busbw),
        "nwrong": None if row.wrong is None else float(row.wrong),
    }


def _figure(value: float) -> float | str:
    """A double as nccl-tests prints it: six places; nan as a string."""
    return "nan" if math.isnan(value) else round(value, 6)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _moment(run: Run, which: int) -> str:
    """The wall clock of the first, or the last, event, in UTC."""
    if not run.history.events:
        return page_facts.started(run)
    return f"{datetime.fromtimestamp(run.history.events[which].at.wall, UTC):%Y-%m-%d %H:%M:%S}"


_HEADS = ("size", "count", "type", "redop", "root")
_FIGURES = ("time", "algbw", "busbw", "#wrong")
_NONE = "N/A"
_UNITS = ("(us)", "(GB/s)", "(GB/s)", "")


def texts(measured: Measured) -> dict[str, str]:
    """Name of the file without its folder -> its text."""
    groups: dict[str, list[Row]] = {}
    for row in shown(measured):
        groups.setdefault(experiment(row), []).append(row)
    return {f"{_name(name)}.txt": "\n".join(_lines(measured, name, rows)) + "\n" for name, rows in groups.items()}


def _name(experiment: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", experiment)


def _lines(measured: Measured, name: str, rows: Sequence[Row]) -> Iterator[str]:
    sizes = [row.case.bytes for row in rows]
    iterations = max(row.case.iterations for row in rows)
    yield f"# Collective test starting: {name}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 2(factor) warmup iters: {measured.setting.warmup}"
        f" iters: {iterations} agg iters: 1 validation: {int(measured.setting.verify)} graph: 0 unalign: 0"
    )
    yield "#"
    yield "# Using devices"
    for rank, node in sorted(measured.setting.nodes.items()):
        yield f"#  Rank {rank:2} Group  0 Pid {0:6} on {node:>10} device {0:2} [0000:00:00] CPU"
    yield "#"
    yield f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6}           out-of-place                       in-place          "
    yield _headings(_HEADS, _FIGURES)
    yield _headings(("(B)", "(elements)", "", "", ""), _UNITS)
    yield from map(_row, rows)
    wrong = sum(row.wrong or 0 for row in rows)
    yield f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {average(rows):g} "
    yield "#"
    yield f"# Collective test concluded: {name}"


def _headings(left: Sequence[str], figures: Sequence[str]) -> str:
    cells = "  ".join(f"{text:>{width}}" for text, width in zip(left, (10, 12, 8, 6, 6), strict=True))
    placed = "  ".join(f"{text:>{width}}" for text, width in zip(figures, (7, 6, 6, 6), strict=True))
    return f"# {cells}  {placed}  {placed} "


def _row(row: Row) -> str:
    kind, operator, root = about(row)
    microseconds = None if row.mean_s is None else row.mean_s * 1e6
    wrong = _NONE.rjust(6) if row.wrong is None else f"{row.wrong:6g}"
    figures = f"  {_cell(microseconds, 7)}  {_cell(row.algbw, 6)}  {_cell(row.busbw, 6)}  {wrong}"
    absent = "".join(f"  {_NONE:>{width}}" for width in (7, 6, 6, 6))
    return f"{row.case.bytes:12}  {count(row):12}  {kind:>8}  {operator:>6}  {root:>6}{absent}{figures}"


def _cell(value: float | None, width: int) -> str:
    return f"{_NONE:>{width}}" if value is None else fitted(value, width)


def fitted(value: float, width: int) -> str:
    """Write at most ``width`` characters, at least two digits behind the point where they fit; more for what is below 1."""
    for digits in (width - 2, 2, 1, 0) if value < 1 else (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"
