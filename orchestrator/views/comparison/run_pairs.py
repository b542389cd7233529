"""Two runs side by side: the same cases, or the same training, and other differences between them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...model import ratio
from ...model.frozen import dataclass, replace
from ...model.run import Run
from .. import overview, statistics, training
from ..json_values import flat, mapping

if TYPE_CHECKING:
    from ..statistics import Floats

#: A number with one of the suffixes that users write.
_QUANTITY = re.compile(r"([-+]?[\d.]*\d(?:e[-+]?\d+)?)\s*(%|[KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1.0, "%": 0.01, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
#: The chance that any case of two equal runs is called changed, as far as their iterations show it.
LEVEL = 0.05
#: The least change between single runs that counts: iterations of one run say nothing about the spread between runs.
FLOOR = 0.1
#: The kinds of times of collectives.
OVER = {
    "max_rank": "the slowest rank of each iteration",
    "mean_rank": "the mean rank of each iteration",
    "cct": "first start to last end of each iteration",
    "chunk": "every chunk transfer",
}
#: Where single runs say too little.
REPEAT = "to resolve smaller changes compare three or more runs each (ccbed run --repeat 3), A and B in turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of both runs, in seconds. ``change``: relative, its interval 95 % for all figures together; None: too few samples.

    ``verdict``: slower or faster where the whole interval is beyond FLOOR, else not resolved.
    """

    what: str
    before: float
    after: float
    change: ratio.Interval | None
    verdict: ratio.Outcome
    counts: tuple[int, int] = (1, 1)

    @property
    def relative(self) -> float:
        """Return after / before - 1; infinite where there was nothing before."""
        if self.before:
            return self.after / self.before - 1
        return math.inf if self.after else 0.0

    def slower_than(self, limit: float) -> bool:
        """Return whether it got slower, and by more than ``limit`` (0.05: 5 %) with its whole interval."""
        return self.verdict == "slower" and self.change is not None and self.change.low > limit

    def is_undecided(self, limit: float) -> bool:
        """Return whether it may be slower by more than ``limit``, though not with its whole interval, or has too few samples.

        Single figures, such as a whole run's time, are not judged.
        """
        if self.change is None:
            return max(self.counts) > 1
        return not self.slower_than(limit) and self.change.high > max(limit, ratio.MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``rows``: the figures of both. ``only``: (run, case) that the other run lacks. ``differences``: (name, in A, in B).

    ``least_samples``: with fewer samples of each run no row can be decided; 0 where nothing has samples.
    ``over``: of collectives, what the times of both are; empty for others.

    ``losses``: (steps with equal losses, steps of both, the first that differs); None without losses.
    """

    rows: tuple[Compared, ...]
    only: tuple[tuple[Literal["A", "B"], str], ...] = ()
    differences: tuple[tuple[str, str, str], ...] = ()
    losses: tuple[int, int, int | None] | None = None
    over: str = ""
    least_samples: int = 0


def compare(before: Run, after: Run) -> Comparison:
    """``rows`` is empty where the runs have nothing in common."""
    other = tuple(differences(before, after))
    old, new = (overview.part_of_collectives(run.history, "comparison") for run in (before, after))
    if old is not None and new is not None:
        compared: Comparison = old.compare(before, after, other)
        return compared
    if old is None and new is None:
        return Comparison(
            rows=tuple(_training(before, after)), losses=_losses(before, after), differences=other,
            least_samples=statistics.least_pairs(LEVEL),
        )  # fmt: skip
    return Comparison(rows=(), differences=other)


def of_samples(name: str, before: Floats, after: Floats, level: float = LEVEL) -> Compared | None:
    """None without samples. ``level``: the probability that the interval misses; less where many figures are compared."""
    old, new = statistics.spread(before), statistics.spread(after)
    if old is None or new is None:
        return None
    row = replace(_single(name, old.p50, new.p50), counts=(old.count, new.count))
    if min(row.counts) < statistics.least_pairs(level) or min(old.min, new.min) <= 0:  # no part of nothing
        return row
    change = ratio.change(before.tolist(), after.tolist(), level=level)
    return replace(row, change=change, verdict=change.outcome(least=FLOOR, equal=0.0)) if change else row


# --- training -----------------------------------------------------------------------------------------------------------


def _training(before: Run, after: Run) -> Iterator[Compared]:
    old, new = (training.view(run) for run in (before, after))
    steps = of_samples("step, slowest rank", step_times(before), step_times(after))
    if steps:
        yield steps
    for index, (earlier, later) in enumerate(zip(old.failovers, new.failovers, strict=False)):
        number = f" {index + 1}" if len(old.failovers) > 1 else ""
        for name, a, b in (
            (f"failover{number}: TTR", earlier.ttr_s, later.ttr_s),
            (f"failover{number}: detected", earlier.detect_s, later.detect_s),
            (f"failover{number}: caught up", earlier.caught_up_s, later.caught_up_s),
        ):
            if a is not None and b is not None:
                yield _single(name, a, b)
    yield _single("whole run", old.duration_s, new.duration_s)


def _single(name: str, before: float, after: float) -> Compared:
    return Compared(what=name, before=before, after=after, change=None, verdict="not resolved")


def step_times(run: Run) -> Floats:
    import numpy as np

    slowest: dict[int, float] = {}
    for record in training.kept_steps(run):
        slowest[record.step] = max(slowest.get(record.step, 0.0), record.end - record.start)
    return np.array([slowest[step] for step in sorted(slowest)], dtype=np.float64)


def _losses(before: Run, after: Run) -> tuple[int, int, int | None] | None:
    old, new = _kept_losses(before), _kept_losses(after)
    both = set(old) & set(new)
    if not both:
        return None
    differ = {key[0] for key in both if old[key] != new[key]}
    steps = {step for step, _ in both}
    return len(steps) - len(differ), len(steps), min(differ, default=None)


def _kept_losses(run: Run) -> Mapping[tuple[int, int], str]:
    """(step, rank) -> loss as written by the last attempt that executed the step."""
    return {(record.step, record.rank): record.loss for record in training.kept_steps(run)}


# --- other differences --------------------------------------------------------------------------------------------------


def differences(before: Run, after: Run) -> Iterator[tuple[str, str, str]]:
    """(name, in A, in B): bed, links, parameters, machine."""
    old, new = dict(_environment(before)), dict(_environment(after))
    for name in [*old, *(name for name in new if name not in old)]:
        a, b = old.get(name, "-"), new.get(name, "-")
        if a != b and not (name.startswith(("params.", "link.")) and canonical(a) == canonical(b)):
            yield name, a, b


def canonical(value: Any) -> Any:
    """Equal for equal values: 2M and 2097152, 2% and 0.02, 1e9 and 1000000000; also within lists, ranges and mappings."""
    if isinstance(value, Mapping):
        return {key: canonical(item) for key, item in value.items()}
    items = value if isinstance(value, list | tuple) else [value]
    return [[_number(part) for part in str(item).split(":")] for item in ",".join(map(str, items)).split(",")]


def _number(text: str) -> float | str:
    match = _QUANTITY.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2].upper()] if match else text.strip()


def _environment(run: Run) -> Iterator[tuple[str, str]]:
    plan, about = mapping(run.extras.get("plan.json")), mapping(run.extras.get("bundle.json"))
    yield "bed", str(plan.get("bed", about.get("bed", "-")))
    yield "backend", str(plan.get("backend", "-"))
    yield "nodes", " ".join(map(str, plan.get("slots", ())))
    yield from flat({"link": plan.get("link")} if plan.get("link") else {}, _text)
    yield "ccbed", str(about.get("ccbed", "-"))
    yield "workload", run.trial.workload
    yield from flat({"params": run.trial.params}, _text)
    yield from flat(mapping(run.extras.get("fingerprint.json")), _text)


def _text(item: Any) -> str:
    return ", ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
