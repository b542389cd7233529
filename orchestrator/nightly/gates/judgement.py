"""The gates over one metric: floor, relative, intermittent, drift and peers, each on its own, a finding per node and gate."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from . import deviations, drift, intermittent, peers, relative, robust, suspects
from .finding import Finding, Outcome

if TYPE_CHECKING:
    from .nights import Metric, Panel


def judge_floor(metric: Metric, node: str, values: tuple[float, ...], floor: float) -> Finding:
    """The median against an absolute limit. A missing or impossible value fails: a floor demands a credible measurement."""

    def report(outcome: Outcome, text: str) -> Finding:
        return Finding(
            gate="floor", outcome=outcome, metric=metric.name, node=node, text=f"{node}: {metric.name} {text}"
        )

    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return report("fail", f"was not measured; its floor is {floor:g} {metric.unit}")
    value = statistics.median(finite)
    if metric.exceeds_ceiling(value):
        return report(
            "unknown", f"{value:g} {metric.unit} is better than its ceiling {metric.ceiling:g}: measured wrongly"
        )
    is_worse = metric.sign * (value - floor) > 0
    relation = "is worse than" if is_worse else "meets"
    return report("fail" if is_worse else "pass", f"{value:g} {metric.unit} {relation} its floor {floor:g}")


def judge_panel(panel: Panel, floor: float | None = None, minimum_absolute: float = 0.0) -> tuple[Finding, ...]:
    """The last night of the panel: a finding for each node and gate, and one for the fleet's common change.

    ``minimum_absolute``: the least difference that is an offence, in the metric's unit; for latencies near zero.
    """

    slowness = panel.slowness
    medians = robust.median(slowness, axis=2)
    # Arrays of the gates have an axis of metrics, here of length one.
    series = deviations.long_deviations(medians)[..., None]
    tonight = deviations.deviations(medians)[..., None]
    results: dict[str, Any] = {
        "relative": relative.judge(tonight, series, _minimum_ratio(panel, minimum_absolute)),
        "intermittent": intermittent.judge(slowness[:, :, None]),
        "drift": drift.judge(series),
        "peers": peers.judge(medians[-1][:, None], _fleet_sigma(medians[:-1])),
    }
    findings = []
    for index, node in enumerate(panel.nodes):
        values = panel.latest(node)
        if floor is not None:
            findings.append(judge_floor(panel.metric, node, values, floor))
        reason = missing_reason(panel, node)
        for gate, result in results.items():
            if reason:
                outcome: Outcome = "unknown"
                text, since = reason, None
            else:
                outcome, text, since = _READERS[gate](panel, result, index, series[:, index, 0])
            findings.append(_finding(panel, gate, node, outcome, text, since))
    return (*findings, suspects.fleet_change(panel))


def _minimum_ratio(panel: Panel, minimum_absolute: float) -> float:
    """The least ratio of an offence: an absolute difference counts as a share of the fleet's median."""
    usable = panel.values[panel.values > 0]
    return max(relative.MINIMUM_RATIO, minimum_absolute / float(robust.median(usable)) if len(usable) else 0.0)


def _fleet_sigma(medians: Any) -> float:
    """The spread between nodes in the median of earlier nights, or that of a node from night to night if it is wider; 0 without nights."""
    import numpy as np

    if not len(medians) or medians.shape[1] <= peers.LEAST_PEERS:
        return 0.0
    spreads = robust.MAD_TO_SIGMA * robust.median(np.abs(medians - robust.median(medians, axis=1)[:, None]), axis=1)
    changes = robust.body(np.diff(medians, axis=0).reshape(-1)) / math.sqrt(2)
    value = float(np.fmax(robust.median(spreads), changes))
    return value if math.isfinite(value) else 0.0


def missing_reason(panel: Panel, node: str) -> str:
    """Why the ratios of a node tonight have no meaning; empty if they have one."""
    metric, values = panel.metric, panel.latest(node)
    if not values:
        return "was not measured"
    if metric.exceeds_ceiling(statistics.median(values)):
        return f"{statistics.median(values):g} {metric.unit} is better than its ceiling {metric.ceiling:g}: measured wrongly"
    if max(values) <= 0:
        return "has no positive value, so that ratios have no meaning"
    stopped = sum(value <= 0 for value in values)
    return f"was not above 0 in {stopped} of {len(values)} repeats" if stopped and metric.better == "higher" else ""


def _finding(panel: Panel, gate: str, node: str, outcome: Outcome, text: str, since: int | None) -> Finding:
    named = suspects.changes(panel, node, since) if since is not None else ()
    sentence = f"{node}: {panel.metric.name} {text}" + (f"; changed that night: {', '.join(named)}" if named else "")
    return Finding(
        gate=gate, outcome=outcome, metric=panel.metric.name, node=node, text=sentence, suspects=named,
        since=panel.label(since) if since is not None else None,
    )  # fmt: skip


_Reading = tuple[Outcome, str, int | None]


def _read_relative(panel: Panel, result: relative.Relative, node: int, series: Any) -> _Reading:
    if not result.is_known[node, 0]:
        return "unknown", "has too few earlier nights for a reference of its own", None
    excess, limit = float(result.excess[node, 0]), float(result.limit[node, 0])
    text = f"is {_worse(excess)} than its reference; the limit is {limit:.1%}"
    if not result.offences[-1, node, 0]:
        return "pass", text, None
    text += f", exceeded on {result.offences[:, node, 0].sum()} of the last {len(result.offences)} nights"
    if result.fails[node, 0]:
        together = f"; together {result.lasting[node, 0]:.1f} sigma, limit {result.fail_limit:.1f}"
        return "fail", text + together, len(panel.nights) - int(result.length[node, 0])
    is_beyond = bool(result.warns[node, 0])
    together = f"; together {result.joint[node, 0]:.1f} sigma, {'beyond' if is_beyond else 'within'} chance ({result.warn_limit:.1f})"
    return "warn" if is_beyond else "pass", text + together, None


def _read_intermittent(panel: Panel, result: intermittent.Intermittent, node: int, series: Any) -> _Reading:
    if not result.is_known[node, 0]:
        return "unknown", "has too few nights with repeats to know how many bad repeats are usual", None
    bad, measured = int(result.bad[node, 0]), int(result.measured[node, 0])
    text = f"has bad repeats (worse than the night's median by {result.limit[0]:.1%}) on {bad} of {measured} nights"
    text += f"; the fleet has them on {result.usual[0]:.1%}; chance {result.chance[node, 0]:.1g}"
    return "fail" if result.fails[node, 0] else "warn" if result.warns[node, 0] else "pass", text, None


def _read_drift(panel: Panel, result: drift.Drift, node: int, series: Any) -> _Reading:
    if not result.is_known[node, 0]:
        return "unknown", f"has fewer than {drift.BEFORE} nights before any change", None
    score, change = float(result.score[node, 0]), float(result.change[node, 0])
    if not result.warns[node, 0]:
        return (
            "pass",
            f"shows no lasting change ({_worse(change)}, {score:.1f} sigma; limit {result.warn_limit:.1f})",
            None,
        )
    recent = series[-drift.HISTORY :]
    night, is_slow = drift.onset(recent)
    index = len(series) - len(recent) + night
    outcome: Outcome = "fail" if result.fails[node, 0] else "warn"
    kind = "slides" if is_slow else "stepped"
    text = f"{kind} to {_worse(change)} since {panel.label(index)} ({score:.1f} sigma; limit {result.fail_limit:.1f})"
    return outcome, text, index


def _read_peers(panel: Panel, result: peers.Peers, node: int, series: Any) -> _Reading:
    if not result.is_known[node, 0]:
        return (
            "unknown",
            f"has {int(result.count[node, 0])} peers of its hardware tonight; {peers.LEAST_PEERS} are needed",
            None,
        )
    if result.limit[node, 0] > peers.WIDEST and not result.suspects[node, 0]:
        return "unknown", "has peers that differ too much to see an odd node", None
    text = f"is {_worse(float(result.excess[node, 0]))} than the median of {int(result.count[node, 0])} peers"
    text += f"; this fleet's limit is {result.limit[node, 0]:.1%}"
    is_suspect = bool(result.suspects[node, 0])
    return "warn" if is_suspect else "pass", text + (": a suspect" if is_suspect else ""), None


def _worse(excess: float) -> str:
    """A difference of logarithms as people say it."""
    return f"{math.expm1(abs(excess)):.1%} {'worse' if excess >= 0 else 'better'}"


_READERS: dict[str, Any] = {
    "relative": _read_relative, "intermittent": _read_intermittent, "drift": _read_drift, "peers": _read_peers,
}  # fmt: skip
