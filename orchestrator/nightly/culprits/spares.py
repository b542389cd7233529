"""Decides whether spares may join a run: their probed figures beside floors and beside each other, by the rules of the gates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...model.frozen import dataclass, replace
from .. import sweeps
from ..baselines import Baseline, Floor
from ..judging import floor_limits
from ..records import Finding, Key
from ..run_record import Measurement, RunRecord
from ..statistics import night_statistics as engine

PROBES = ("gemm", "memory", "disk")
_UNSURE = ", but whether it is as fast as it should be is not known"
#: Parameters that choose what is measured and how often. They do not change a figure, so that floors of other trials apply.
_CHOICES = re.compile(r"(?:^| )(?:probes|repeats)=\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """``is_fit``: False for a spare that is worse than a floor or than its peers; one that could not be judged may join."""

    node: str
    is_fit: bool
    text: str


def judge(record: RunRecord, spares: Sequence[str], baselines: Sequence[Baseline]) -> tuple[Fitness, ...]:
    """``record``: of the run that probed ``spares`` at the same time."""
    measured = tuple(item for item in record.measurements if item.values)
    beside_peers = sweeps.judge_nodes([replace(record, measurements=measured)])
    return tuple(_judge(spare, record, baselines, beside_peers) for spare in spares)


def replace_figures(record: RunRecord, spares: Sequence[str], second: RunRecord) -> RunRecord:
    """``record`` with the figures of ``spares`` from a second probe; the other spares stay as their peers."""
    values = {(item.node, item.metric.name): item.values for item in second.measurements}
    measurements = (
        replace(item, values=values.get((item.node, item.metric.name), ()))
        if item.node.partition(":")[0] in spares
        else item
        for item in record.measurements
    )
    return replace(record, measurements=tuple(measurements))


def _judge(spare: str, record: RunRecord, baselines: Sequence[Baseline], beside_peers: Sequence[Finding]) -> Fitness:
    hardware = record.hardware.get(spare, "")
    own = [item for item in record.measurements if item.node.partition(":")[0] == spare and "->" not in item.node]
    by_floor = list(_judge_floors(spare, own, hardware, baselines))
    named = (finding for finding in beside_peers if (finding.gate, finding.outcome) == ("peers", "warn"))
    odd = [finding.text for finding in named if spare in {culprit.partition(":")[0] for culprit in finding.culprits}]
    bad = [finding.text for finding in by_floor if finding.outcome == "fail"] + odd
    if bad:
        return Fitness(node=spare, is_fit=False, text="; ".join(text.removeprefix(f"{spare}: ") for text in bad))
    met = sum(finding.outcome == "pass" for finding in by_floor)
    is_measured = any(item.values for item in own)
    is_among_peers = is_measured and any(
        finding.gate == "peers" and finding.outcome in ("pass", "warn") for finding in beside_peers
    )
    known = [f"{met} of {len(by_floor)} figures meet their floors"] if met else []
    known += ["no figure is odd beside its peers"] if is_among_peers else []
    unknown = [finding.text for finding in by_floor if finding.outcome == "unknown"]
    unknown += [] if by_floor else [f"no floor for {hardware or 'its hardware, which is not known'}"]
    why = f"fewer than {engine.LEAST_NODES - 1} peers" if is_measured else "it was not measured"
    unknown += [] if is_among_peers else [why]
    text = f"{spare} joins" + (f": {'; '.join(known)}" if known else _UNSURE)
    return Fitness(node=spare, is_fit=True, text=f"{text} ({'; '.join(unknown)})" if unknown else text)


def _judge_floors(
    spare: str, own: Sequence[Measurement], hardware: str, baselines: Sequence[Baseline]
) -> Iterator[Finding]:
    """A finding for each figure with a floor; a metric of a floor that was not measured fails, as in a night."""
    keys = {_comparable(item.key) for item in own}
    for baseline in baselines:
        for floor in baseline.floors if baseline.hardware == hardware else ():
            key = _comparable(baseline.key(floor))
            if floor.gang or floor.metric.split()[0] not in PROBES or key not in keys:
                continue
            yield from _judge_floor(spare, floor, [item for item in own if _comparable(item.key) == key])


def _judge_floor(spare: str, floor: Floor, own: Sequence[Measurement]) -> Iterator[Finding]:
    matched = [item for item in own if item.metric.name == floor.metric]
    for item in matched:
        if (item.metric.unit, item.metric.better) != (floor.unit, floor.better):
            text = (
                f"{spare}: {floor.metric} is in {item.metric.unit}, its floor in {floor.unit}: they cannot be compared"
            )
            yield Finding(gate="floor", outcome="unknown", metric=floor.metric, node=spare, text=text)
        else:
            yield floor_limits.judge_value(item.metric, item.node, item.values, floor.floor)
    if not matched:
        text = f"{spare}: {floor.metric} was not measured; its floor is {floor.floor:g} {floor.unit}"
        yield Finding(gate="floor", outcome="fail", metric=floor.metric, node=spare, text=text)


def _comparable(key: Key) -> tuple[str, str]:
    return key.workload, _CHOICES.sub("", key.parameters).strip()
