"""Synthetic fleets and pair sweeps: what the nightly gates detect and how often they fail a sound node, beside other methods.

CCBED_BENCH_FLEETS (default 20) and CCBED_BENCH_SWEEPS (default 100) say how many; CCBED_BENCH_SEED is the first seed;
CCBED_OTAVA is the interpreter of an environment with apache-otava, without which its rows are left out.
The rows are printed and written to out/fleets.md as soon as each is measured; the reaches are not asserted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly.gates import deviations, drift, intermittent, pairs, relative, robust

from . import rivals, table
from .fleets import Defect, Fleet, Kind, fleet
from .pair_sweeps import sweep

FLEETS = int(os.environ.get("CCBED_BENCH_FLEETS", "20"))
SWEEPS = int(os.environ.get("CCBED_BENCH_SWEEPS", "100"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "9000000"))
OTAVA = os.environ.get("CCBED_OTAVA", "")
#: The first night that is judged, and the range in which defects begin.
FIRST, ONSETS = 30, 8
CASES: tuple[tuple[Kind, float, int, int], ...] = (
    ("step", 0.05, 3, 95), ("drift", 0.003, 20, 90), ("intermittent", 0.0, 5, 90),
)  # fmt: skip
#: Only the last nights of a reach are judged: what fails before them is missed, so that the share is a lower bound.
JUDGED = 5
GATES = ("relative", "intermittent", "drift")


def report(line: str) -> None:
    """To the terminal and to the file, at once: a run that is cut off keeps what it has."""
    table.OUT.mkdir(parents=True, exist_ok=True)
    with (table.OUT / "fleets.md").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def failures(synthetic: Fleet, nights: range) -> Iterator[tuple[Any, dict[str, Any]]]:
    """By night: which nodes were measured, and by gate what fails, nodes x metrics."""
    slowness = synthetic.slowness
    medians = robust.median(slowness, axis=-1)
    excess = deviations.deviations(medians)
    for night in nights:
        series = deviations.long_deviations(medians[: night + 1])
        measured = ~np.isnan(medians[night]).all(axis=1)
        results: tuple[Any, ...] = (
            relative.judge(excess[: night + 1], series), intermittent.judge(slowness[: night + 1]), drift.judge(series)
        )  # fmt: skip
        yield measured, {name: result.fails for name, result in zip(GATES, results, strict=True)}


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("metrics", [1, 5])
@pytest.mark.parametrize(("kind", "size", "within", "reach"), CASES)
def test_detection(kind: Kind, size: float, within: int, reach: int, metrics: int) -> None:
    hits = dict.fromkeys((*GATES, "any"), 0)
    for seed in range(SEED, SEED + FLEETS):
        begin = FIRST + seed % ONSETS
        synthetic = fleet(seed, Defect(kind=kind, night=begin, metrics=metrics, size=size))
        affected = list(synthetic.affected)
        failed = {
            gate for _, fails in failures(synthetic, range(begin + max(0, within - JUDGED), begin + within))
            for gate in GATES if fails[gate][0, affected].any()
        }  # fmt: skip
        for gate in failed:
            hits[gate] += 1
        hits["any"] += bool(failed)
    shares = ", ".join(f"{gate} {count / FLEETS:.1%}" for gate, count in hits.items() if gate != "any")
    report(
        f"| {kind} of {size or '1 in 5 repeats'}, {metrics} of 20 metrics, failed within {within} nights | {hits['any'] / FLEETS:.1%} "
        f"({shares}) | {reach} % | {FLEETS} fleets from seed {SEED} |"
    )
    assert hits["any"]


@pytest.mark.bench
@pytest.mark.timeout(36_000)
def test_false_failures() -> None:
    counts, total = dict.fromkeys((*GATES, "any"), 0), 0
    for seed in range(SEED, SEED + FLEETS):
        for measured, fails in failures(fleet(seed), range(FIRST, 60)):
            total += int(measured.sum())
            by_gate = {gate: fails[gate].any(axis=1) & measured for gate in GATES}
            for gate in GATES:
                counts[gate] += int(by_gate[gate].sum())
            counts["any"] += int(np.logical_or.reduce(list(by_gate.values())).sum())
    shares = ", ".join(f"{gate} {count / total:.1e}" for gate, count in counts.items() if gate != "any")
    report(
        f"| false failures per node-night | {counts['any'] / total:.1e} ({shares}) | 1e-4 | {total} node-nights, {FLEETS} fleets from "
        f"seed {SEED} |"
    )
    assert total


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(("size", "reach"), [(0.0, "0 named"), (0.05, "none"), (0.1, "95 %"), (0.2, "99 %")])
def test_culprits(size: float, reach: str) -> None:
    right = undecided = 0
    for seed in range(SEED, SEED + SWEEPS):
        case = sweep(seed, size or 0.1, defects=None if size else 0)
        result = pairs.solve(case.rates, case.nodes, case.groups)
        right += {(culprit.kind, culprit.parts) for culprit in result.culprits} == case.truth
        undecided += bool(result.alternatives)
    report(
        f"| pair sweeps at {size:.0%}: exactly the culprits | {right / SWEEPS:.1%} ({undecided} cannot tell) | {reach} | {SWEEPS} sweeps "
        f"from seed {SEED} |"
    )
    assert right


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(("kind", "size", "within"), [("step", 0.05, 3), ("drift", 0.003, 20)])
def test_roc(kind: Kind, size: float, within: int) -> None:
    """The defect's node and metric against 40 others of its fleet, on the last night of the reach."""
    methods: dict[str, list[list[float]]] = {"ccbed": [], "SuperBench, 3 nights": []}
    raw, cleaned = [], []
    for seed in range(SEED, SEED + FLEETS):
        night = FIRST + seed % ONSETS + within - 1
        synthetic = fleet(seed, Defect(kind=kind, night=night - within + 1, size=size))
        slowness = synthetic.slowness[: night + 1]
        medians = robust.median(slowness, axis=-1)
        series = deviations.long_deviations(medians)
        joint = relative.judge(deviations.deviations(medians), series).joint
        score = np.fmax(joint, drift.judge(series).score)
        cells = _cells(seed, synthetic)
        rates = np.moveaxis(np.exp(-slowness[-3:]), 0, 2)
        by_metric = {metric: rivals.superbench(rates[:, metric].reshape(len(rates), -1)) for _, metric in cells}
        methods["ccbed"].append([float(np.nan_to_num(score[cell])) for cell in cells])
        methods["SuperBench, 3 nights"].append([float(by_metric[metric][node]) for node, metric in cells])
        raw += [np.exp(-medians[:, *cell][~np.isnan(medians[:, *cell])]).tolist() for cell in cells]
        cleaned += [np.exp(-series[:, *cell][~np.isnan(series[:, *cell])]).tolist() for cell in cells]
    if OTAVA:
        size_of = len(raw) // FLEETS
        for name, curves in (("Otava on rates", raw), ("Otava on our deviations", cleaned)):
            scores = rivals.otava(OTAVA, curves)
            methods[name] = [scores[start : start + size_of] for start in range(0, len(scores), size_of)]
    for name, rows in methods.items():
        values = np.array(rows)
        area, one_percent, one_permille = rivals.roc(values[:, 0], values[:, 1:].ravel())
        report(
            f"| ROC, {kind}, 1 metric, night {within}: {name} "
            f"| area {area:.3f}, {one_percent:.0%} at 1 %, {one_permille:.0%} at 0.1 % false | "
            f"not judged | {FLEETS} fleets from seed {SEED} |"
        )
    assert methods["ccbed"]


def _cells(seed: int, synthetic: Fleet) -> list[tuple[int, int]]:
    """Node and metric: the defect first, then others of other nodes."""
    rng = np.random.default_rng(seed)
    nodes, metrics = synthetic.slowness.shape[1:3]
    others = [(int(rng.integers(1, nodes)), int(rng.integers(metrics))) for _ in range(40)]
    return [(0, synthetic.affected[0]), *others]
