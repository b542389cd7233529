"""Tells whether the loss of a run after its recovery lies where undisturbed runs of the same job have theirs.

A band is the interval in which one more undisturbed run is expected, by Student's t: the mean of their losses
+- t * deviation * sqrt(1 + 1/n), at least MARGIN. The chance that any of both windows of an undisturbed run lies outside is at most LEVEL.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from ...model.events import RunBegin
from ...model.frozen import dataclass
from ...model.run import Run
from ...model.verdict import Outcome
from ..json_values import number
from .compared_systems import job_of
from .job_steps import kept_steps, watched

#: Fewer undisturbed runs make no band.
LEAST = 5
LEVEL = 0.01
#: A smaller difference is none, as a part of the loss: a restart by itself changes last bits.
MARGIN = 0.001
#: Steps of a window: the first after the recovery, and the last of the run.
STEPS = 10
#: Degrees of freedom -> the quantile 1 - LEVEL / 4 of Student's t: two sides, two windows. Between rows that of the row before.
_QUANTILES = {4: 5.598, 5: 4.773, 6: 4.317, 7: 4.029, 8: 3.833, 9: 3.690, 10: 3.581, 15: 3.286, 20: 3.153, 30: 3.030}


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """``steps``: (first, last) of the window; ``loss``: of the run, mean over ranks and steps; ``low``, ``high``: the band."""

    name: str
    steps: tuple[int, int]
    loss: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        return self.low <= self.loss <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBands:
    """``outcome`` with the reason in ``text``; ``runs``: how many undisturbed ones there are."""

    outcome: Outcome
    text: str
    runs: int
    bands: tuple[Band, ...] = ()


def loss_bands(run: Run, undisturbed: Sequence[Run]) -> LossBands:
    """``run`` recovered from a loss; the others had none, and are of the same job."""
    count = len(undisturbed)
    resumed = _resumed(run)
    problems = [
        *(f"{count} undisturbed runs make no band: at least {LEAST}" for _ in [0] if count < LEAST),
        *(f"{path} is named {times} times" for path, times in _repeated(undisturbed)),
        *(f"{other.directory} is a run of another job" for other in undisturbed if _job(other) != _job(run)),
        *(f"{other.directory} ran another {name}" for other in undisturbed for name in _changed(run, other)),
        *(f"{other.directory} was disturbed" for other in undisturbed if _is_disturbed(other)),
        *(
            "the step that the run resumed from is not known, or it recovered from no loss"
            for _ in [0]
            if resumed is None
        ),
    ]
    if problems or resumed is None:
        return LossBands(outcome="unknown", text=problems[0], runs=count)
    own, others = _losses(run), [_losses(other) for other in undisturbed]
    common = sorted(step for step in own if step > resumed and all(step in other for other in others))
    if not common:
        text = f"no step after {resumed} has a loss of every rank in all runs"
        return LossBands(outcome="unknown", text=text, runs=count)
    windows = {f"first steps after {resumed}": common[:STEPS], "last steps": common[-STEPS:]}
    bands = tuple(_band(name, steps, own, others) for name, steps in windows.items())
    return _conclude(bands, count)


def _repeated(undisturbed: Sequence[Run]) -> list[tuple[str, int]]:
    """The runs that are named more than once: a run is no sample of itself."""
    counts = Counter(other.directory for other in undisturbed)
    return [(path, times) for path, times in counts.items() if times > 1]


def _conclude(bands: Sequence[Band], count: int) -> LossBands:
    outside = [band for band in bands if not band.holds]
    equal = [band for band in outside if band.low == band.high]
    if any(not math.isfinite(value) for band in bands for value in (band.loss, band.low, band.high)):
        return LossBands(outcome="unknown", text="a loss is not a finite number", runs=count, bands=tuple(bands))
    if equal:
        text = f"not seen to differ in {count} undisturbed runs, so there is no band; bit-exact compares with a reference run"
        return LossBands(outcome="unknown", text=text, runs=count, bands=tuple(bands))
    if outside:
        band = outside[0]
        text = f"{band.name}: loss {band.loss:.6g}, the band of {count} undisturbed runs is {band.low:.6g} to {band.high:.6g}"
        return LossBands(outcome="fail", text=text, runs=count, bands=tuple(bands))
    return LossBands(
        outcome="pass", text=f"loss within the band of {count} undisturbed runs", runs=count, bands=tuple(bands)
    )


def _band(name: str, steps: Sequence[int], own: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> Band:
    means = [statistics.fmean(other[step] for step in steps) for other in others]
    centre, deviation = statistics.fmean(means), statistics.stdev(means)
    quantile = _QUANTILES[max(freedom for freedom in _QUANTILES if freedom <= len(means) - 1)]
    reach = max(quantile * deviation * math.sqrt(1 + 1 / len(means)), MARGIN * abs(centre))
    low, high = (centre - reach, centre + reach) if deviation else (means[0], means[0])
    return Band(
        name=name, steps=(steps[0], steps[-1]), loss=statistics.fmean(own[step] for step in steps), low=low, high=high
    )


def _losses(run: Run) -> dict[int, float]:
    """Step -> mean loss over ranks, of steps that every rank has a loss of."""
    by_step: dict[int, dict[int, float]] = {}
    for record in kept_steps(run):
        loss = number(record.loss) if record.loss else None
        if loss is not None:
            by_step.setdefault(record.step, {})[record.rank] = loss
    ranks = max(map(len, by_step.values()), default=0)
    return {step: statistics.fmean(losses.values()) for step, losses in by_step.items() if len(losses) == ranks}


def _resumed(run: Run) -> int | None:
    """The step that the newest attempt resumed from; None if it is not known, or if there was one attempt only."""
    lines = watched(run)
    if lines is None or len(lines.attempts) < 2:
        return None
    return lines.bases.get(lines.attempts[-1].index)


def _job(run: Run) -> tuple[object, ...]:
    return job_of(run), run.trial.world


def _changed(run: Run, other: Run) -> list[str]:
    """The Python files of the project that both runs have, with other content."""
    own, others = _code(run), _code(other)
    return sorted(name for name, sha256 in own.items() if others.get(name, sha256) != sha256)


def _code(run: Run) -> dict[str, str]:
    begin = run.history.first(RunBegin)
    inputs = (begin.data.inputs if begin else None) or {}
    return {name.removeprefix("user/"): sha256 for name, sha256 in inputs.items() if name.endswith(".py")}


def _is_disturbed(run: Run) -> bool:
    lines = watched(run)
    return bool(run.trial.faults) or lines is None or len(lines.attempts) != 1
