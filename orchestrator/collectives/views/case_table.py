"""The table of a collective run: a line per case, columns as nccl-tests has them and the model beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.frozen import dataclass, replace
from ...views import quantities
from . import phrases
from .measurements import Measured, Row

Cells = tuple[str, ...]
#: (band, name) of the columns that a narrow terminal leaves out, the first ones first.
_LEAST = (
    ("", "count"), ("of it", "wait"), ("of it", "transfer"), ("chunk ms", "p50"), ("chunk ms", "max"), ("algbw", "GB/s"),
    ("model", "ms"), ("time ms", "min"), ("time ms", "p95"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``bands``: (title, how many columns) above ``head``; ``rows``: cells, grouped by what the cases have in common."""

    bands: tuple[tuple[str, int], ...]
    head: Cells
    groups: tuple[tuple[str, tuple[Cells, ...]], ...]


def table(measured: Measured) -> Table:
    """Each size is shown once; a figure that was not measured is a dash. The p99 has a column only if it is known."""
    p99 = any(row.time and row.time.p99 is not None for row in measured.rows)
    counts = sorted({row.time.count for row in measured.rows if row.time})
    count = f"n={counts[0]:,}" if len(counts) == 1 else f"n={counts[0]:,}-{counts[-1]:,}" if counts else "n=0"
    over = {"max_rank": "slowest rank", "mean_rank": "mean rank", "cct": "first start to last end"}.get(
        _over(measured), _over(measured)
    )
    times = ("min", "p50", "p95", *(["p99"] if p99 else []), "max")
    groups: dict[str, list[Row]] = {}
    for row in measured.rows:
        groups.setdefault(phrases.kind(row.case), []).append(row)
    return Table(
        bands=(
            ("", 3), (f"time ms, {over}, {count}", len(times)), ("algbw", 1), ("busbw", 1), ("model", 1), ("meas/", 1), ("of", 1),
            ("chunk ms", 2), ("of it, p50", 2), ("", 1),
        ),
        head=("size", "algorithm", "count", *times, "GB/s", "GB/s", "ms", "model", "line", "p50", "max", "wait", "transfer", "wrong"),
        groups=tuple((title, tuple(_cells(rows, p99))) for title, rows in groups.items()),
    )  # fmt: skip


def largest(measured: Measured, limit: int) -> Measured:
    """Keep the cases of the largest sizes, at most so many, each size whole; all where no more than two would be left out.

    Small sizes say least of a fabric. Of a single size the first cases are kept.
    """
    if len(measured.rows) <= limit + 2:
        return measured
    sizes = sorted(row.case.bytes for row in measured.rows)
    least = next((size for size in sizes if sum(other >= size for other in sizes) <= limit), None)
    rows = [row for row in measured.rows if least is not None and row.case.bytes >= least]
    return replace(measured, rows=tuple(rows or measured.rows[:limit]))


def lines(measured: Measured, width: int = 0) -> list[str]:
    """Return plain text. ``width``: columns of the terminal; figures that do not fit are left out, and named in the last line."""
    made, left_out = table(measured), []
    texts = _lines(made)
    for band, name in _LEAST if width else ():
        if max(map(len, texts)) <= width:
            break
        left_out.append(f"{band} {name}".strip())
        made = _without(made, band, name)
        texts = _lines(made)
    return [*texts, f"(for a wider terminal: {', '.join(left_out)})"] if left_out else texts


def _without(made: Table, band: str, name: str) -> Table:
    """The table without a column, and with short titles above the others."""
    bands = [(title.split(", ")[0] if count < len(title) else title, count) for title, count in made.bands]
    columns = [title for title, count in bands for _ in range(count)]
    dropped = next(number for number, title in enumerate(columns) if title == band and made.head[number] == name)

    def kept(cells: Cells) -> Cells:
        return cells[:dropped] + cells[dropped + 1 :]

    place = next(
        number for number, (title, _) in enumerate(bands) if sum(count for _, count in bands[: number + 1]) > dropped
    )
    bands[place] = (bands[place][0], bands[place][1] - 1)
    groups = tuple((title, tuple(map(kept, rows))) for title, rows in made.groups)
    return Table(bands=tuple(item for item in bands if item[1]), head=kept(made.head), groups=groups)


def _lines(made: Table) -> list[str]:
    rows = [cells for _, group in made.groups for cells in group]
    widths = [max(len(cells[column]) for cells in (made.head, *rows)) for column in range(len(made.head))]
    _widen(widths, made.bands)
    texts = [_banded(made.bands, widths), _aligned(made.head, widths)]
    for title, group in made.groups:
        texts += [title, *(_aligned(cells, widths) for cells in group)]
    return [text.rstrip() for text in texts]


def _cells(rows: Sequence[Row], p99: bool) -> Iterator[Cells]:
    last_size = ""
    for row in rows:
        size = quantities.size(row.case.bytes) if row.case.bytes else "-"
        yield (
            "" if size == last_size else size,
            row.case.algorithm + " (auto)" * (row.case.requested == "auto"),
            f"{row.case.count:,}" if row.case.bytes else "-",
            *_times(row, p99),
            *_rates(row),
        )
        last_size = size


def _times(row: Row, p99: bool) -> Iterator[str]:
    spread = row.time
    figures = (
        (spread.min, spread.p50, spread.p95, *((spread.p99,) if p99 else ()), spread.max)
        if spread
        else (None,) * (4 + p99)
    )
    return map(quantities.milliseconds, figures)


def _rates(row: Row) -> tuple[str, ...]:
    return (
        quantities.bandwidth(row.algbw),
        quantities.bandwidth(row.busbw),
        quantities.milliseconds(row.model_s),
        "-" if row.of_model is None else f"{row.of_model:.2f}",
        quantities.percent(row.of_line),
        quantities.milliseconds(row.chunks.p50 if row.chunks else None),
        quantities.milliseconds(row.chunks.max if row.chunks else None),
        quantities.milliseconds(row.waiting.p50 if row.waiting else None),
        quantities.milliseconds(row.transferring.p50 if row.transferring else None),
        "-" if row.wrong is None else str(row.wrong),
    )


def _over(measured: Measured) -> str:
    return measured.rows[0].over if measured.rows else measured.setting.over


def _widen(widths: list[int], bands: Sequence[tuple[str, int]]) -> None:
    """A band's title fits above its columns."""
    column = 0
    for title, count in bands:
        short = len(title) - sum(widths[column : column + count]) - 2 * (count - 1)
        widths[column] += max(0, short)
        column += count


def _banded(bands: Sequence[tuple[str, int]], widths: Sequence[int]) -> str:
    texts, column = [], 0
    for title, count in bands:
        width = sum(widths[column : column + count]) + 2 * (count - 1)
        texts.append(title.rjust(width) if count == 1 else title.center(width))
        column += count
    return "  ".join(texts)


def _aligned(cells: Cells, widths: Sequence[int]) -> str:
    """Size and figures to the right, the algorithm to the left."""
    return "  ".join(
        cell.ljust(width) if column == 1 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
