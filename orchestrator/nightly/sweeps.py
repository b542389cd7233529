"""Find the slow node or link of today, without any history: nodes beside their peers, and the links between all pairs of nodes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..model.event import History
from ..model.events import LinkPair
from ..model.frozen import dataclass
from . import classes
from .records import Finding, Key, Metric, worst
from .run_record import Measurement, RunRecord
from .statistics import digests, night_statistics, pair_sweeps, robust

if TYPE_CHECKING:
    from .records import Floats

#: The workloads whose trials each kind of sweep can judge.
PROBING, LINKING = "node-probe", "collective"
METRIC, LINK = "link rate", "link beta"
#: The gate of findings that a node has no figure, or one that differs widely where nobody can say from what.
MEASUREMENT = "measurement"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairSweep:
    """``rates``: from x to x trains, in bytes/s, NaN where there is none. ``groups``: node -> switch, empty for one switch."""

    nodes: tuple[str, ...]
    rates: Floats
    groups: Mapping[str, str]
    solution: pair_sweeps.Sweep
    finding: Finding

    @property
    def medians(self) -> Floats:
        """Return the median rates (from x to), in bytes/s."""
        import numpy as np

        return robust.median(np.where(np.isfinite(self.rates), self.rates, np.nan), axis=2)


def exit_code(findings: Sequence[Finding]) -> int:
    """0: something could be judged, and nothing is odd; 1: a mismatch of bits; 2: a suspect, a node without a figure, or nothing
    could be judged."""
    outcomes = {finding.outcome for finding in findings}
    if "fail" in outcomes:
        return 1
    if any(finding.gate == MEASUREMENT for finding in findings):
        return 2
    return 0 if "pass" in outcomes and worst(tuple(findings)) in ("pass", "unknown") else 2


def judge_nodes(
    records: Iterable[RunRecord], histories: Iterable[History] = (), quarantined: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Nodes of equal hardware beside each other, metric by metric; and the bits that they computed.

    The values of all records of a node count together. A suspect is a warning: identical hardware differs. ``quarantined``: nodes
    that are judged, and are no peers of the others.
    """
    series: dict[tuple[str, Key], dict[str, list[float]]] = {}
    metrics: dict[tuple[str, Key], Measurement] = {}
    for record in records:
        for measurement in record.measurements:
            if measurement.node and "->" not in measurement.node:
                what = (measurement.metric.name, measurement.key)
                metrics.setdefault(what, measurement)
                series.setdefault(what, {}).setdefault(measurement.node, []).extend(measurement.values)
    figures = sum(map(len, series.values()))
    findings = [
        finding
        for what, nodes in series.items()
        for finding in _judge_metric(metrics[what], nodes, quarantined, figures)
    ]
    return (*_few(findings), *digests.judge(digests.read(histories)))


def _judge_metric(
    measurement: Measurement, nodes: Mapping[str, Sequence[float]], quarantined: Collection[str], figures: int
) -> Iterator[Finding]:
    """Nodes without a value are named, and so are those without a ratio; the others are judged beside each other. ``figures``: of all
    nodes and metrics, which share the chance of a false suspect.
    """
    metric = measurement.metric
    finite = {name: [value for value in nodes[name] if math.isfinite(value)] for name in sorted(nodes)}
    medians = {name: statistics.median(values) for name, values in finite.items() if values}
    positive = {name: value for name, value in medians.items() if value > 0}
    for name in (name for name in finite if name not in medians):
        text = f"{metric.name}: {name} was not measured"
        yield Finding(gate=MEASUREMENT, outcome="unknown", metric=metric.name, node=name, text=text)
    idle = {name: value for name, value in medians.items() if value <= 0}
    is_rate = metric.better == "higher"
    if idle and not (is_rate and positive):
        yield _unknown(metric.name, f"has no ratio on {', '.join(idle)}: the value is not above 0")
    if positive:
        stopped = {name: f"{name} is at {value:g} {metric.unit}" for name, value in idle.items() if is_rate}
        yield _beside_peers(metric, positive, stopped, quarantined, figures)


def _beside_peers(
    metric: Metric, medians: Mapping[str, float], stopped: Mapping[str, str], quarantined: Collection[str], figures: int
) -> Finding:
    """``stopped``: nodes whose rate is not above 0, and the text on each; they are suspects."""
    import numpy as np

    names, kind = list(medians), classes.of(metric.name, classes.read())
    apart, least = (
        [name.partition(":")[0] in quarantined for name in names],
        night_statistics.least_change(kind.least, metric.better),
    )
    beside = night_statistics.beside_peers(
        metric.sign * np.log([[value] for value in medians.values()]), names, np.array(apart), np.array([least]),
        np.array([kind.peers]), figures,
    )  # fmt: skip
    parts_of = (beside.excess, beside.limit, beside.others, beside.odd)
    excess, limits, others, odd = (part[:, 0].tolist() for part in parts_of)
    limit, count = max(limits), len(names) - sum(apart)
    suspects = {name: (excess[row], others[row], limits[row]) for row, name in enumerate(names) if odd[row]}
    if count < night_statistics.LEAST_NODES and not stopped:
        return _unknown(metric.name, f"{count} nodes of equal hardware; {night_statistics.LEAST_NODES} are needed")
    if limit > night_statistics.WIDEST and not suspects and not stopped:
        finding = _unknown(
            metric.name, f"the nodes differ too much to see an odd one (limit {-math.expm1(-limit):.0%})"
        )
        is_large = max(map(abs, excess)) > night_statistics.most_that_passes(least)
        return dataclasses.replace(finding, gate=MEASUREMENT) if is_large else finding
    if not suspects and not stopped:
        return Finding(
            gate="peers", outcome="pass", metric=metric.name, text=f"{metric.name}: no node of {len(names)} is odd"
        )
    parts = dict(stopped)
    for name, (more, peers, limit) in suspects.items():
        side = "worse" if more > 0 else "better"
        share = -math.expm1(-more) if more > 0 else abs(night_statistics.percent(more, metric.better))
        parts[name] = (
            f"{name} is {share:.1%} {side} than the median of {peers:.0f} peers"
            f" (limit {-math.expm1(-limit):.1%}){'' if more > 0 else ', which may be slow'}"
        )
    texts = [
        text + (", and is set aside" if name.partition(":")[0] in quarantined else "") for name, text in parts.items()
    ]
    worse = [name for name in parts if name in stopped or suspects[name][0] > 0]  # beside a better one any may be slow
    return Finding(
        gate="peers", outcome="warn", metric=metric.name, text=f"{metric.name}: {'; '.join(texts)}",
        node=worse[0] if len(parts) == len(worse) == 1 else None, culprits=tuple(worse),
    )  # fmt: skip


def _unknown(metric: str, reason: str) -> Finding:
    return Finding(gate="peers", outcome="unknown", metric=metric, text=f"{metric}: {reason}")


def _few(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for all metrics that pass, and one for each reason why metrics could not be judged."""
    grouped: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        reason = finding.text.removeprefix(f"{finding.metric}: ")
        grouped.setdefault((finding.gate, finding.outcome, reason), []).append(finding)
    results = []
    for (_, outcome, reason), same in grouped.items():
        names = ", ".join(finding.metric for finding in same)
        results += (
            same if outcome == "warn" else [dataclasses.replace(same[0], metric=names, text=f"{names}: {reason}")]
        )
    return tuple(results)


def judge_pairs(
    histories: Sequence[History],
    nodes: Sequence[str],
    leaves: Mapping[str, int],
    hosts: Mapping[str, str] | None = None,
) -> PairSweep:
    """The culprits among links, directions, nodes and switches. ``nodes``: by rank; ``leaves``: node -> its leaf switch;
    ``hosts``: node -> its host, of nodes that use the link of their host.

    The trains of all histories count together.
    """
    names = tuple(nodes)
    rates = link_rates(histories, len(names))
    groups = {name: f"leaf {leaves.get(name, 0)}" for name in names} if len(set(leaves.values())) > 1 else {}
    solution = pair_sweeps.solve(rates, names, classes.of(LINK, classes.read()), groups, hosts=hosts)
    return PairSweep(
        nodes=names, rates=rates, groups=groups, solution=solution, finding=pair_sweeps.judge(solution, METRIC)
    )


def link_rates(histories: Sequence[History], world: int) -> Floats:
    """Read the rates (from x to x trains) from the probes of links, in bytes/s; NaN where there is none."""
    import numpy as np

    trains: dict[tuple[int, int], list[float]] = {}
    for history in histories:
        for event in history.of(LinkPair):
            slopes = [float(value) for value in event.data.trains or ()]
            if event.data.rank is not None and event.data.peer is not None:
                trains.setdefault((event.data.rank, event.data.peer), []).extend(slopes)
    rates = np.full((world, world, max((len(values) for values in trains.values()), default=1)), np.nan)
    for (sender, receiver), values in trains.items():
        if sender < world and receiver < world:
            rates[sender, receiver, : len(values)] = [1 / value if value > 0 else np.nan for value in values]
    return rates


def document(sweep: PairSweep) -> dict[str, Any]:
    """Return the sweep as JSON: rates in bytes/s, null where there is none."""
    table = [[None if math.isnan(rate) else float(rate) for rate in row] for row in sweep.medians]
    return {
        "nodes": list(sweep.nodes),
        "groups": dict(sweep.groups),
        "rates_bytes_per_s": table,
        "sigma": None if math.isnan(sweep.solution.sigma) else sweep.solution.sigma,
        "culprits": [_part(part) for part in sweep.solution.culprits],
        "alternatives": [_part(part) for part in sweep.solution.alternatives],
    }


def _part(culprit: pair_sweeps.Culprit) -> object:
    return {
        "kind": culprit.kind, "parts": list(culprit.parts), "slowdown": culprit.slowdown, "confidence": culprit.confidence,
    }  # fmt: skip
