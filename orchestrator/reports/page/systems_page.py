"""Runs of one job under several systems, side by side: the rows of the table, its notes, and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import jinja2

from ...core.verdict.rungs import PRECEDENCE
from ...core.verdict.sentence import seconds
from ...views.training.compared_systems import System, jobs_differ
from ...views.training.worker_returns import Return

_NONE = "-"
_EVERY = "first step of every rank"


def render(columns: Sequence[System]) -> bytes:
    """A page that is complete in itself."""
    loader = jinja2.PackageLoader("orchestrator.reports", "page")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("systems.html.j2")
    return template.render(
        columns=columns, rows=rows(columns), notes=list(notes(columns)), outcomes=PRECEDENCE, bars=_bars(columns)
    ).encode(errors="replace")  # fmt: skip


def _bars(columns: Sequence[System]) -> Mapping[str, Sequence[float]]:
    """The times to the first step of every rank, in percent of the longest; 0 where there is none."""
    times = [(column.returns[0].first_step_s or 0.0) if column.returns else 0.0 for column in columns]
    longest = max(times, default=0.0)
    return {_EVERY: [round(100 * time / longest, 1) for time in times]} if longest else {}


def rows(columns: Sequence[System]) -> list[tuple[str, ...]]:
    """Label, then a cell for each system."""
    table = [
        ("run", *(column.run.rpartition("-")[2] for column in columns)),
        ("workers", *(column.workers for column in columns)),
        *_of_faults(columns),
        ("resumed from step", *(_resumed(column) for column in columns)),
        ("steps redone", *(_NONE if column.redone is None else str(column.redone) for column in columns)),
    ]
    return [*table, *_verdicts(columns)]


def notes(columns: Sequence[System]) -> Iterable[str]:
    """Return what must be known to read the table."""
    for column in columns:
        for item in column.returns:
            if item.reason:
                yield f"{column.system}: first step of every rank: {item.reason}"
            elif item.survivors:
                yield f"{column.system}: {item.survivors} processes went on; the others are new"
    if any(column.returns for column in columns):
        yield "detected: by ccbed, which replaces the node; a launcher notices the loss in its own way"
    if jobs_differ(columns):
        jobs = sorted({f"{column.job} ({column.workers})" for column in columns})
        yield f"the jobs differ: {'; '.join(jobs)}"


def _of_faults(columns: Sequence[System]) -> list[tuple[str, ...]]:
    most = max((len(column.returns) for column in columns), default=0)
    table: list[tuple[str, ...]] = []
    cells: tuple[tuple[str, Callable[[Return], str]], ...] = (
        ("fault", lambda item: f"{item.fault} {item.node}"),
        ("detected", _detected),
        ("first step of any rank", lambda item: _seconds(item.any_step_s)),
        (_EVERY, lambda item: _seconds(item.first_step_s)),
    )
    for index in range(most):
        number = f" {index + 1}" if most > 1 else ""
        for label, cell in cells:
            values = (cell(column.returns[index]) if index < len(column.returns) else _NONE for column in columns)
            table.append((label + number, *values))
    return table


def _detected(item: Return) -> str:
    return _NONE if item.detected_s is None else f"{seconds(item.detected_s)} ({item.detector})"


def _seconds(value: float | None) -> str:
    return _NONE if value is None else seconds(value)


def _resumed(column: System) -> str:
    return ", ".join("not known" if step is None else str(step) for step in column.resumed) or _NONE


def _verdicts(columns: Sequence[System]) -> list[tuple[str, ...]]:
    """The checks that did not pass everywhere, worst first; the others are counted."""
    checks = list(dict.fromkeys(check for column in columns for check in column.verdicts))
    order = (*PRECEDENCE, "skipped")

    def worst(check: str) -> int:
        return min(order.index(column.verdicts[check]) for column in columns if check in column.verdicts)

    uneven = [check for check in checks if any(column.verdicts.get(check) != "pass" for column in columns)]
    uneven.sort(key=worst)
    passed = ("checks passed", *(str(sum(v == "pass" for v in column.verdicts.values())) for column in columns))
    return [passed, *((check, *(column.verdicts.get(check, _NONE) for column in columns)) for check in uneven)]
