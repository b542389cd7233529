"""The results as nccl-tests prints them, a text for each operation and algorithm, for programs that read its output (cloudai).

Columns, widths and headings are those of its src/util.cu. With the two decimals of nccl-tests a small bandwidth would be 0.00;
here each figure has as many digits as its column can hold. Only in-place operations are measured; the columns of out-of-place
operations are N/A.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..views import Measured, Row
from . import nccl

_HEADS = ("size", "count", "type", "redop", "root")
_FIGURES = ("time", "algbw", "busbw", "#wrong")
_NONE = "N/A"
_UNITS = ("(us)", "(GB/s)", "(GB/s)", "")


def texts(measured: Measured) -> dict[str, str]:
    """Name of the file without its folder -> its text."""
    groups: dict[str, list[Row]] = {}
    for row in nccl.shown(measured):
        groups.setdefault(nccl.experiment(row), []).append(row)
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
    yield f"# {'Avg bus bandwidth':<20} : {nccl.average(rows):g} "
    yield "#"
    yield f"# Collective test concluded: {name}"


def _headings(left: Sequence[str], figures: Sequence[str]) -> str:
    cells = "  ".join(f"{text:>{width}}" for text, width in zip(left, (10, 12, 8, 6, 6), strict=True))
    placed = "  ".join(f"{text:>{width}}" for text, width in zip(figures, (7, 6, 6, 6), strict=True))
    return f"# {cells}  {placed}  {placed} "


def _row(row: Row) -> str:
    kind, operator, root = nccl.about(row)
    microseconds = None if row.mean_s is None else row.mean_s * 1e6
    wrong = _NONE.rjust(6) if row.wrong is None else f"{row.wrong:6g}"
    figures = f"  {_cell(microseconds, 7)}  {_cell(row.algbw, 6)}  {_cell(row.busbw, 6)}  {wrong}"
    absent = "".join(f"  {_NONE:>{width}}" for width in (7, 6, 6, 6))
    return f"{row.case.bytes:12}  {nccl.count(row):12}  {kind:>8}  {operator:>6}  {root:>6}{absent}{figures}"


def _cell(value: float | None, width: int) -> str:
    return f"{_NONE:>{width}}" if value is None else fitted(value, width)


def fitted(value: float, width: int) -> str:
    """At most ``width`` characters, at least two digits behind the point where they fit; more for what is below 1."""
    for digits in (width - 2, 2, 1, 0) if value < 1 else (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"
