"""Two runs that measured collectives, side by side: the same cases, by their iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ..model.run import Run
from ..views import quantities, statistics
from ..views.comparison import LEVEL, Compared, Comparison, Figure, of_samples
from . import views as collectives
from .views import phrases

Differences = tuple[tuple[str, str, str], ...]


def compare(before: Run, after: Run, differences: Differences) -> Comparison:
    """``rows`` is empty where nothing was measured. ``differences``: others, between the runs."""
    over = _over(before, after)
    old, new = collectives.measured(before, over), collectives.measured(after, over)
    if old is None or new is None:
        return Comparison(rows=(), differences=differences)
    cases = _by_identity(old), _by_identity(new)
    both = [name for name in cases[0] if name in cases[1]]
    level = LEVEL / max(1, len(both))
    rows = tuple(_case(name, old, cases[0][name], new, cases[1][name], level) for name in both)
    only: list[tuple[Literal["A", "B"], str]] = [("A", name) for name in cases[0] if name not in cases[1]]
    only += [("B", name) for name in cases[1] if name not in cases[0]]
    return Comparison(
        rows=tuple(row for row in rows if row), only=tuple(only), differences=differences, over=over,
        least_samples=statistics.least_pairs(level),
    )  # fmt: skip


def figures(run: Run) -> Iterator[tuple[str, Figure]]:
    """The median iteration of each case, by its slowest rank."""
    measured = collectives.measured(run, "max_rank")
    for row in measured.rows if measured else ():
        yield full_name(row.case), Figure(value=row.trial.p50 if row.trial else None)


def _over(before: Run, after: Run) -> str:
    """The kind of times of both runs; the slowest rank where the kinds differ or are chunks: cases are compared by iterations."""
    kinds = {setting.over for setting in map(collectives.setting, (before, after)) if setting is not None}
    return kinds.pop() if len(kinds) == 1 and "chunk" not in kinds else "max_rank"


def _by_identity(measured: collectives.Measured) -> dict[str, collectives.Case]:
    """Full name of a case -> the case; the first where a plan has it twice."""
    named: dict[str, collectives.Case] = {}
    for case in measured.setting.cases:
        named.setdefault(full_name(case), case)
    return named


def full_name(case: collectives.Case) -> str:
    """Operation, algorithm, size, ranks and groups: cases of two runs are compared if these are equal."""
    groups = f" groups {[len(group) for group in case.groups]}" if len(case.groups) > 1 else ""
    return f"{phrases.kind(case)}: {case.algorithm} {quantities.size(case.bytes)}, {case.world} ranks{groups}"


def _case(
    name: str,
    old: collectives.Measured,
    case: collectives.Case,
    new: collectives.Measured,
    same: collectives.Case,
    level: float,
) -> Compared | None:
    before, after = old.data[case.number][1], new.data[same.number][1]
    return of_samples(name, before, after, level)
