"""Floors: absolute limits of a suite or of a baseline. A metric that is missing fails its floor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...model.frozen import dataclass, replace
from ..baselines import Baseline, Floor, node_hardware
from ..classes import matches as matches_name
from ..night_judgement import Judged
from ..records import Finding, Key, Metric, Outcome
from ..statistics.night_statistics import Compared
from ..suite import Cell, MetricRule
from .figures import NODE_PROBE, Series

GATE = "floor"


def matches(rule: MetricRule, name: str) -> bool:
    return matches_name(rule.metric, name)


def judge_suite(cell: Cell, series: Iterable[Series]) -> Iterator[Judged]:
    """The floors of a cell that was run."""
    measured = [entry for entry in series if cell.name in entry.cells]
    for rule in cell.rules:
        if rule.floor is None:
            continue
        matched = [entry for entry in measured if matches(rule, entry.metric.name)]
        for entry in matched:
            yield from judge(entry, rule.floor, cell.name, f"the floor of the suite for {rule.metric}")
        if not matched:
            text = f"{rule.metric} was not measured; its floor is {rule.floor:g}"
            yield _missing(rule.metric, text, cell.name, "the floor of the suite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """The night that a baseline is applied to. ``hardware``: of the nodes that took part; ``tried``: trials of which a repeat was run, as
    the suite names them, with a cell of each. ``can_have``: whether a node of some hardware can have a metric.
    """

    series: Mapping[tuple[str, Key], Series]
    hardware: frozenset[str]
    tried: Mapping[str, str]
    can_have: Callable[[str, str], bool] = lambda hardware, metric: True

    def cells(self, trial: str) -> dict[Key, str]:
        """The keys under which a trial was measured, with a cell of each."""
        return {key: entry.cells[0] for (_, key), entry in self.series.items() if trial in entry.trials}


def judge_baseline(baseline: Baseline, tonight: Tonight) -> Iterator[Judged]:
    """The floors of a baseline for hardware and trials that were measured tonight."""
    for floor in baseline.floors:
        key = baseline.key(floor)
        entry = tonight.series.get((floor.metric, key))
        reference = _reference(baseline, floor)
        if entry is not None and (entry.metric.unit, entry.metric.better) != (floor.unit, floor.better):
            text = f"{floor.metric} is in {entry.metric.unit}, its floor in {floor.unit}: they cannot be compared"
            finding = Finding(gate=GATE, outcome="unknown", metric=floor.metric, text=text)
            yield Judged(finding=finding, state="unknown", cell=entry.cells[0], key=key, reference=reference)
        elif entry is not None:
            yield from judge(entry, floor.floor, entry.cells[0], reference)
        elif tonight.can_have(baseline.hardware, floor.metric) and (cell := _cell_without(baseline, floor, tonight)):
            text = f"{floor.metric} was not measured; its floor is {floor.floor:g} {floor.unit}"
            yield _missing(floor.metric, text, cell, reference, key)
    for (trial, key), floors in _unapplied(baseline, tonight).items():
        if others := _keys_without_floor(baseline, trial, key, tonight):
            yield _other_keys(baseline, floors, key, others, tonight)


def notes_on(baselines: Iterable[Baseline], tonight: Tonight) -> Iterator[str]:
    """Floors that say nothing of this night: of trials, or of parameters, that it does not have; and hardware without a baseline."""
    baselines = tuple(baselines)
    known = {baseline.hardware for baseline in baselines}
    for hardware in sorted(tonight.hardware - known) if baselines else ():
        yield f"no baseline has floors for {hardware}; they are for {'; '.join(sorted(known))}"
    for baseline in baselines:
        unapplied = _unapplied(baseline, tonight)
        names = {trial for trial, key in unapplied if not _keys_without_floor(baseline, trial, key, tonight)}
        if names:
            yield f"{baseline.file or baseline.hardware}: floors of {', '.join(sorted(names))}: not measured by this suite"


def _cell_without(baseline: Baseline, floor: Floor, tonight: Tonight) -> str:
    """The cell that should have measured the metric of a floor: it has its key, or was run on its hardware and has no figure at all."""
    cells = tonight.cells(floor.trial)
    is_silent = not cells and baseline.hardware in tonight.hardware
    return cells.get(baseline.key(floor), "") or (tonight.tried.get(floor.trial, "") if is_silent else "")


def _unapplied(baseline: Baseline, tonight: Tonight) -> dict[tuple[str, Key], list[Floor]]:
    """The floors for hardware of tonight that no figure of tonight has the key of, by trial and key."""
    floors: dict[tuple[str, Key], list[Floor]] = {}
    for floor in baseline.floors if baseline.hardware in tonight.hardware else ():
        key = baseline.key(floor)
        if (floor.metric, key) not in tonight.series and not _cell_without(baseline, floor, tonight):
            floors.setdefault((floor.trial, key), []).append(floor)
    return floors


def _keys_without_floor(baseline: Baseline, trial: str, key: Key, tonight: Tonight) -> list[Key]:
    """The keys under which the trial was measured tonight on this hardware, if the baseline has no floor for them.

    A baseline may have floors for more parameters than one suite has: only a figure that has none shows that one was lost.
    """
    is_of_gang = key.hardware != baseline.hardware
    others = tonight.cells(trial).keys() - {baseline.key(floor) for floor in baseline.floors}
    return sorted((
        other for other in others
        if (node_hardware(other.hardware) if is_of_gang else other.hardware) == baseline.hardware
    ), key=str)  # fmt: skip


def _other_keys(
    baseline: Baseline, floors: Sequence[Floor], key: Key, others: Sequence[Key], tonight: Tonight
) -> Judged:
    """One finding for all floors of a trial and key: it was measured under another key, so that they cannot be applied."""
    metrics = list(dict.fromkeys(floor.metric for floor in floors))
    more = f" and of {len(metrics) - 1} other metrics" if len(metrics) > 1 else ""
    is_other_hardware = any(other.hardware != key.hardware for other in others)
    accepted, *measured = [_describe(other, is_other_hardware) for other in (key, *others)]
    trial = floors[0].trial
    text = (
        f"{trial}: the floor of {metrics[0]}{more} is for {accepted}; "
        f"it was measured with {', or '.join(measured)}: not applied"
    )
    finding = Finding(gate=GATE, outcome="unknown", metric=metrics[0] if len(metrics) == 1 else "", text=text)
    return Judged(
        finding=finding, state="unknown", cell=tonight.cells(trial)[others[0]], key=others[0],
        reference=_reference(baseline, floors[0]),
    )  # fmt: skip


def _describe(key: Key, has_hardware: bool) -> str:
    """A key without the hardware where that is the same."""
    return f"[{key.hardware}; {key.parameters}]" if has_hardware else f"[{key.parameters}]"


def judge_value(metric: Metric, node: str, values: Sequence[float], floor: float) -> Finding:
    """The median against an absolute limit. A missing or impossible value fails: a floor demands a credible measurement."""
    finite = [value for value in values if math.isfinite(value)]
    outcome: Outcome = "fail"
    text = f"was not measured; its floor is {floor:g} {metric.unit}"
    if finite and metric.exceeds_ceiling(value := statistics.median(finite)):
        outcome = "unknown"
        text = f"{value:g} {metric.unit} is better than its ceiling {metric.ceiling:g}: measured wrongly"
    elif finite:
        outcome = "fail" if metric.sign * (value - floor) > 0 else "pass"
        relation = "meets" if outcome == "pass" else "is worse than"
        text = f"{value:g} {metric.unit} {relation} its floor {floor:g}"
    prefix = f"{node}: " if node else ""
    return Finding(gate=GATE, outcome=outcome, metric=metric.name, node=node, text=f"{prefix}{metric.name} {text}")


def judge(series: Series, floor: float, cell: str, reference: str, kind: str = GATE) -> Iterator[Judged]:
    """A finding for every label of the series, and for every node and rank of its runs that has no figure."""
    for node in sorted({*series.values, *_missing_labels(series)}):
        metric, values = series.metric, tuple(series.values.get(node, ()))
        judged = series.judged(judge_value(metric, node, values, floor), cell=cell, reference=reference)
        value = judged.value
        excess = metric.sign * math.log(value / floor) if value and min(value, floor) > 0 else None
        compared = Compared(kind=kind, better=metric.better, excess=excess, reference=floor)
        yield judged if value is None else replace(judged, compared=compared)


def _missing_labels(series: Series) -> set[str]:
    """Return where nodes have figures of their own: the nodes of the runs without one, and the ranks that other nodes have.

    A figure that a single node has may be one of the gang that rank 0 reports, unless it is of a probe, which all nodes run.
    """
    ranks: dict[str, set[str]] = {}
    for label in series.values:
        for end in label.split("->"):
            node, _, rank = end.partition(":")
            ranks.setdefault(node, set()).update(() if "->" in label else (rank,))
    if "" in ranks or (len(ranks) == 1 and series.key.workload != NODE_PROBE):
        return set()
    usual = set().union(*ranks.values())
    of_ranks = {f"{node}:{rank}" for node, own in ranks.items() for rank in usual - own if "" not in usual}
    return (of_ranks - series.exempt) | (series.participants - set(ranks))


def _missing(metric: str, text: str, cell: str, reference: str, key: Key | None = None) -> Judged:
    finding = Finding(gate=GATE, outcome="fail", metric=metric, text=text)
    return Judged(finding=finding, state="fail", cell=cell, key=key, reference=reference)


def _reference(baseline: Baseline, floor: Floor) -> str:
    side = "below" if floor.better == "higher" else "above"
    accepted = f"accepted {floor.accepted}, {floor.margin:.0%} {side} {floor.measured:g} {floor.unit}"
    return f"the floor of {baseline.file or baseline.hardware}, {accepted}"
