"""The figures of a run or of a night from which floors are accepted: of runs that passed, and without noise."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...model.errors import UsageError
from ...store import seal
from .. import bundle_records, classes, night_files
from ..baselines import Baseline, Measured
from ..classes import MetricClass
from ..run_record import RunRecord
from . import figures, floor_limits
from .night import judge, read_runs

#: A metric whose worst node is worse than the median by this factor varies too much for a limit.
NOISE = 1.5


def read(
    directory: Path, metrics: Iterable[str] = (), kinds: Sequence[MetricClass] = ()
) -> tuple[tuple[Measured, ...], tuple[str, ...]]:
    """The metrics that a night compares by ratio, or those that ``metrics`` names, and notes on what is left out. ``kinds``: the classes of
    metrics, those that ccbed ships where none are given.

    Raises UsageError if no run passed, or none has such a metric; TornBundleError for a run that cannot be read.
    """
    if night_files.is_night(directory):
        runs, notes = read_runs(directory, night_files.read_rows(directory), night_files.read_night(directory))
    else:
        record = bundle_records.read(directory)
        runs, notes = [("", record)], record.notes
    reasons = {record.run: _reason(record) for _, record in runs}
    passed = [(cell, record) for cell, record in runs if not reasons[record.run]]
    notes += tuple(f"{run} is no evidence: {reason}" for run, reason in reasons.items() if reason)
    if not passed:
        problem = f"{directory}: no run of it is evidence for a floor"
        raise UsageError(problem, *notes, hint="floors come from complete runs that passed")
    names = tuple(metrics)
    entries = [
        entry for (name, key), entry in figures.collect(passed).items()
        if (any(classes.matches(wanted, name) for wanted in names) if names else figures.is_judged(name, key))
    ]  # fmt: skip
    if not entries:
        known = ", ".join(sorted({name for name, _ in figures.collect(passed)})[:8])
        raise UsageError(f"{directory}: no such metric in its runs", hint=f"--metric takes: {known or 'none'}")
    unfit: dict[str, list[str]] = {}
    kinds = kinds or classes.read()
    for entry in entries:
        if reason := _unfit(entry) or ("" if names else _uncompared(entry.metric.name, kinds)):
            unfit.setdefault(reason, []).append(entry.metric.name)
    notes += tuple(f"no floor for {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in unfit.items())
    left_out = {name for names_of in unfit.values() for name in names_of}
    return tuple(_measured(entry) for entry in entries if entry.metric.name not in left_out), notes


def refusals(night: Path, baselines: Sequence[Baseline]) -> tuple[str, ...]:
    """The floors of ``baselines`` that the night does not pass."""
    findings = judge(night, (), baselines).findings
    return tuple(
        f"{judged.finding.node}: {judged.finding.text}".removeprefix(": ") for judged in findings
        if judged.finding.gate == floor_limits.GATE and judged.state in ("fail", "unknown")
    )  # fmt: skip


def _uncompared(name: str, kinds: Sequence[MetricClass]) -> str:
    kind = classes.of(name, kinds)
    return "" if kind.compare == "ratio" else f"its class, {kind.name}, is not compared by ratio"


def _unfit(entry: figures.Series) -> str:
    """Return why the metric gets no floor; empty if it gets one."""
    worst = _worst(entry)
    middle = statistics.median(map(statistics.median, entry.values.values()))
    if worst <= 0 or middle <= 0:
        return "it is 0, and no margin of 0 is a limit"
    if max(worst / middle, middle / worst) > NOISE:
        return f"it varies between nodes by more than {NOISE - 1:.0%}"
    failed = (judged.finding for judged in floor_limits.judge(entry, worst, "", "") if judged.state != "pass")
    return next((finding.text for finding in failed), "")


def _worst(entry: figures.Series) -> float:
    """The median of the worst node."""
    worse = min if entry.metric.better == "higher" else max
    return worse(map(statistics.median, entry.values.values()))


def _reason(record: RunRecord) -> str:
    """Return why a run is no evidence for a floor; empty if it is."""
    if record.outcome != "pass":
        return f"its outcome is {record.outcome}"
    if not record.is_sealed:
        return "it has no checksums"
    return next(iter(seal.verify(Path(record.directory))), "")


def _measured(entry: figures.Series) -> Measured:
    """A figure of a gang belongs to the gang's hardware, the directions of a link as well."""
    return Measured(
        metric=entry.metric.name, unit=entry.metric.unit, better=entry.metric.better, key=entry.key, trial=entry.trials[0],
        worst=_worst(entry), values=tuple(value for values in entry.values.values() for value in values),
        runs=tuple(dict.fromkeys(run for runs in entry.runs.values() for run in runs)),
        gang=any(not node or "->" in node for node in entry.values),
    )  # fmt: skip
