"""Two groups of repeated runs: single figures such as the time to recover and the goodput, with intervals of their change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Literal

from ...model import ratio
from ...model.frozen import dataclass, replace
from ...model.run import Run
from .. import overview, statistics, training
from ..overview import RunView
from . import run_pairs

Judgement = Literal["slower", "faster", "worse", "better", "equal", "not resolved"]
#: The chance that any figure of two equal groups is called changed.
LEVEL = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one run. ``value`` None: the run does not have it. ``unit``: s, 1 (a share), or steps."""

    value: float | None
    unit: str = "s"
    is_higher_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """A figure of both groups: its medians, and the change from A to B with its interval.

    ``change``: of times relative (0.05: 5 % more), else in the figure's unit. ``reason``: why it is not resolved, and what would.
    ``counts``: the runs of A and of B that have the figure.
    """

    what: str
    unit: str
    before: float | None
    after: float | None
    counts: tuple[int, int]
    change: ratio.Interval | None = None
    verdict: Judgement = "not resolved"
    reason: str = ""
    is_higher_better: bool = False

    @property
    def is_relative(self) -> bool:
        return self.unit == "s"

    def worse_than(self, limit: float) -> bool:
        """Return whether it is worse, and by more than ``limit`` (0.05: 5 % of A's median) with its whole interval."""
        if self.verdict not in ("slower", "worse") or self.change is None or self.before is None:
            return False
        least = min(abs(self.change.low), abs(self.change.high))
        return least > limit * self.scale

    def is_undecided(self, limit: float) -> bool:
        """Return whether it may be worse by more than ``limit``, though not with its whole interval."""
        if self.change is None:
            return True
        most = -self.change.low if self.is_higher_better else self.change.high
        return not self.worse_than(limit) and most > max(limit, ratio.MARGIN) * self.scale

    @property
    def scale(self) -> float:
        """Return what a change of 1 is: all of A's median."""
        return 1.0 if self.is_relative else abs(self.before or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """``least_runs``: with fewer runs in each group no row can be decided. ``level``: of each row's interval.

    ``is_separate``: every run of one group began before those of the other, so that a change of the machine's load between
    them looks like a change of the trial.
    """

    rows: tuple[Grouped, ...]
    least_runs: int
    level: float
    is_separate: bool
    differences: tuple[tuple[str, str, str], ...] = ()


def compare_groups(before: Sequence[Run], after: Sequence[Run]) -> Groups:
    """``rows`` is empty where the groups have nothing in common. Raises ValueError for a group of different trials."""
    for side, runs in (("A", before), ("B", after)):
        if any(_job(run) != _job(runs[0]) for run in runs):
            raise ValueError(f"{side}: its runs are of different trials, or of one trial with different options")
    rows = compare_figures(*([_figures(run) for run in runs] for runs in (before, after)))
    level = LEVEL / max(1, len(rows))
    return Groups(
        rows=rows, level=level, least_runs=ratio.LEAST, is_separate=_is_separate(before, after),
        differences=tuple(run_pairs.differences(before[0], after[0])),
    )  # fmt: skip


def compare_figures(old: Sequence[Mapping[str, Figure]], new: Sequence[Mapping[str, Figure]]) -> tuple[Grouped, ...]:
    """The figures that runs of both groups have; for each run a mapping of name -> figure."""
    names = [name for name in _names(old) if name in _names(new)]
    level = LEVEL / max(1, len(names))
    return tuple(_row(name, [run.get(name) for run in old], [run.get(name) for run in new], level) for name in names)


def _is_separate(before: Sequence[Run], after: Sequence[Run]) -> bool:
    old, new = ([run.history.events[0].at.wall for run in runs if run.history.events] for runs in (before, after))
    return bool(old and new) and (max(old) < min(new) or max(new) < min(old))


def _job(run: Run) -> tuple[object, ...]:
    trial = run.trial
    return trial.workload, run_pairs.canonical(trial.params), trial.world, trial.faults, trial.recovery


def _names(group: Sequence[Mapping[str, Figure]]) -> list[str]:
    """The figures that any run of the group has, in order."""
    return list(dict.fromkeys(name for run in group for name, figure in run.items() if figure.value is not None))


def _row(what: str, old: Sequence[Figure | None], new: Sequence[Figure | None], level: float) -> Grouped:
    before, after = ([figure.value for figure in group if figure and figure.value is not None] for group in (old, new))
    shape = next(figure for figure in (*old, *new) if figure and figure.value is not None)
    row = Grouped(
        what=what, unit=shape.unit, before=median_low(before), after=median_low(after),
        counts=(len(before), len(after)), is_higher_better=shape.is_higher_better,
    )  # fmt: skip
    lacking = [
        f"{len(group) - len(values)} of {len(group)} runs of {side} do not have it"
        for side, group, values in zip("AB", (old, new), (before, after), strict=True)
        if len(values) < len(group)
    ]
    if lacking:
        return replace(row, reason="; ".join(lacking))
    if row.is_relative and min(*before, *after) <= 0:
        return replace(row, reason="a time that is not above 0 has no relative change")
    change = ratio.change(before, after, level=level, independent=True, is_relative=row.is_relative)
    if change is None:
        return replace(row, reason=f"too few runs: needs {ratio.LEAST} or more in each group")
    return _judged(replace(row, change=change), change)


def _judged(row: Grouped, change: ratio.Interval) -> Grouped:
    margin = ratio.MARGIN * row.scale
    outcome = change.outcome(margin, margin)
    if outcome == "not resolved":
        needed = change.needed(min(row.counts), margin, row.is_relative)
        return replace(row, reason=f"about {needed:,} runs in each group would decide" if needed else "")
    if outcome == "equal" or row.is_relative:
        return replace(row, verdict=outcome)
    return replace(row, verdict="worse" if (outcome == "slower") != row.is_higher_better else "better")


# --- the figures of one run ---------------------------------------------------------------------------------------------


def _figures(run: Run) -> dict[str, Figure]:
    """A run that did not finish has no figures: its times would be those of what it did not do."""
    view = training.view(run)
    if view.outcome != "finished":
        return {}
    collectives = overview.part_of_collectives(run.history, "comparison")
    return dict(collectives.figures(run) if collectives else _of_training(run, view))


def _of_training(run: Run, view: RunView) -> Iterator[tuple[str, Figure]]:
    yield "whole run", Figure(value=view.duration_s)
    yield "goodput", Figure(value=view.goodput, unit="1", is_higher_better=True)
    steps = statistics.spread(run_pairs.step_times(run))
    yield "step, slowest rank: p50", Figure(value=steps.p50 if steps and steps.p50 > 0 else None)
    for number, failover in enumerate(view.failovers, 1):
        name = f"failover {number}" if len(view.failovers) > 1 else "failover"
        yield f"{name}: TTR", Figure(value=failover.ttr_s)
        yield f"{name}: detected", Figure(value=failover.detect_s)
        yield f"{name}: caught up", Figure(value=failover.caught_up_s)
        if view.step is not None:
            yield f"{name}: steps redone", Figure(value=float(len(failover.lost_steps)), unit="steps")
