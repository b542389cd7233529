"""The results in the shape of nccl-tests' own JSON (``-J``, version 2 of it), so that what reads that reads this.

Its names and units: times in microseconds, bandwidths in 10^9 bytes/s, booleans as strings. What nccl-tests measures as
mean time of a loop is here the median trial. There is one placement here, in place; ``out_of_place`` repeats it for those
that read only that. One document holds all operations: ``experiment_name`` says which, as the program of nccl-tests would be called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...model.run import Run
from ...views.collectives import Measured, Row
from . import facts

VERSION = 2
_PROGRAMS = {
    "all-reduce": "all_reduce_perf", "all-gather": "all_gather_perf", "reduce-scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf", "reduce": "reduce_perf", "gather": "gather_perf", "scatter": "scatter_perf",
    "all-to-all": "alltoall_perf", "send-recv": "sendrecv_perf",
}  # fmt: skip
_TYPES = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16", "int8": "int8", "uint8": "uint8",
    "int32": "int32", "int64": "int64",
}  # fmt: skip
#: Operations whose count is that of one rank's share.
_SHARED = ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter")
#: Operations with a root; the others have -1 there.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_REDUCES = ("all-reduce", "reduce-scatter", "reduce")


def document(run: Run, found: Measured) -> str:
    """JSON text. Sizes without bytes (a barrier) have no place in it."""
    rows = [row for row in found.rows if row.case.bytes and row.trial]
    average = sum(row.busbw or 0.0 for row in rows) / len(rows) if rows else 0.0
    value = {
        "version": VERSION,
        "start_time": _moment(run, 0),
        "args": ["ccbed", "run", run.trial.name],
        "env": [],
        "nccl_version": 0,
        "config": _config(found, rows),
        "results": [_result(found, row) for row in rows],
        "out_of_bounds": {
            "count": found.wrong,
            "okay": _bool(found.wrong == 0) if found.setting.verify else "unchecked",
        },
        "average_bus_bandwidth": {"bandwidth": _figure(average), "okay": "unchecked"},
        "errors": [],
        "end_time": _moment(run, -1),
    }
    return json.dumps(value, indent=1) + "\n"


def _config(found: Measured, rows: list[Row]) -> dict[str, Any]:
    sizes = [row.case.bytes for row in rows]
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": min(sizes, default=0),
        "maximum_bytes": max(sizes, default=0),
        "step_factor": 2,
        "warmup_iters": found.setting.warmup,
        "iterations": max((row.case.iterations for row in rows), default=0),
        "aggregated_iterations": 1,
        "validation": int(found.setting.verify),
        "graph": 0,
        "blocking_collectives": _bool(value=True),
        "per_iter_timing": _bool(value=True),
        "parallel_init": _bool(value=False),
        "devices": [_device(rank, node) for rank, node in sorted(found.setting.nodes.items())],
    }


def _device(rank: int, node: str) -> Mapping[str, Any]:
    return {
        "rank": rank,
        "group": 0,
        "pid": 0,
        "hostname": node,
        "device": rank,
        "device_hex": "",
        "device_info": "CPU",
    }


def _result(found: Measured, row: Row) -> dict[str, Any]:
    case, trial = row.case, row.trial
    assert trial is not None
    times = found.data[case.number][0].times("max_rank")
    deviation = float(times.std())
    return {
        "size": case.bytes,
        "count": _count(row),
        "type": _TYPES.get(case.dtype, case.dtype),
        "redop": case.operator if case.operation in _REDUCES else "none",
        "root": f"{case.root if case.operation in _ROOTED else -1:>6}",
        "out_of_place": _body(row),
        "in_place": _body(row),
        "in_place_per_iter": {
            "min_us": _figure(trial.min * 1e6),
            "max_us": _figure(trial.max * 1e6),
            "avg_us": _figure(trial.mean * 1e6),
            "p50_us": _figure(trial.p50 * 1e6),
            "p95_us": _figure(trial.p95 * 1e6),
            "p99_us": _figure(math.nan if trial.p99 is None else trial.p99 * 1e6),
            "stdev_us": _figure(deviation * 1e6),
            "cv_pct": _figure(100 * deviation / trial.mean if trial.mean else 0.0),
            "times_us": [_figure(float(one) * 1e6) for one in times],
        },
        "actual_iterations": trial.count,
        "experiment_name": f"{_PROGRAMS.get(case.operation, case.operation)} {case.algorithm}",
    }


def _count(row: Row) -> int:
    """Elements of one rank's share where the size is the total of all ranks, as nccl-tests prints it."""
    case = row.case
    return case.count // max(case.world, 1) if case.operation in _SHARED else case.count


def _body(row: Row) -> dict[str, Any]:
    return {
        "time": _figure(row.trial.p50 * 1e6 if row.trial else math.nan),
        "alg_bw": _figure(row.algbw or 0.0),
        "bus_bw": _figure(row.busbw or 0.0),
        "nwrong": None if row.wrong is None else float(row.wrong),
    }


def _figure(value: float) -> float | str:
    """As nccl-tests prints doubles: six places; what is no number as a string."""
    return "nan" if math.isnan(value) else round(value, 6)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _moment(run: Run, which: int) -> str:
    """The wall clock of the first, or the last, event, in UTC."""
    if not run.history.events:
        return facts.started(run)
    return f"{datetime.fromtimestamp(run.history.events[which].at.wall, UTC):%Y-%m-%d %H:%M:%S}"
