"""The table of runs of one job under several systems, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.verdict.sentence import PRECEDENCE, seconds
from ...views.training.systems import System, jobs_differ
from ...views.training.worker_returns import Return
from .terminal import Terminal

_NONE = "-"


def show(terminal: Terminal, columns: Sequence[System]) -> None:
    """A column for each run. A figure that is not known is a dash; its reason follows the table."""
    terminal.table(("", *(column.system for column in columns)), rows(columns))
    terminal.lines(notes(columns))


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
    """What must be known to read the table."""
    for column in columns:
        for item in column.returns:
            if item.reason:
                yield f"note      {column.system}: first step of every rank: {item.reason}"
            elif item.survivors:
                yield f"note      {column.system}: {item.survivors} processes went on; the others are new"
    if any(column.returns for column in columns):
        yield "note      detected: by ccbed, which replaces the node; a launcher notices the loss in its own way"
    if jobs_differ(columns):
        jobs = sorted({f"{column.job} ({column.workers})" for column in columns})
        yield f"note      the jobs differ: {'; '.join(jobs)}"


def _of_faults(columns: Sequence[System]) -> list[tuple[str, ...]]:
    most = max((len(column.returns) for column in columns), default=0)
    table: list[tuple[str, ...]] = []
    cells: tuple[tuple[str, Callable[[Return], str]], ...] = (
        ("fault", lambda item: f"{item.fault} {item.node}"),
        ("detected", _detected),
        ("first step of any rank", lambda item: _seconds(item.any_step_s)),
        ("first step of every rank", lambda item: _seconds(item.first_step_s)),
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
