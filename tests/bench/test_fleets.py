"""Synthetic fleets and pair sweeps: what the nightly gates detect and how often they fail a sound node, beside other methods.

CCBED_BENCH_FLEETS (default 20) and CCBED_BENCH_SWEEPS (default 100) say how many; CCBED_BENCH_SEED is the first seed;
CCBED_OTAVA is the interpreter of an environment with apache-otava, without which its rows are left out.
The rows are printed and written to out/fleets.md as soon as each is measured; the reaches are not asserted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly.gates import deviations, drift, intermittent, pairs, relative, robust

from . import bounds, rivals, table
from .fleets import Defect, Fleet, Floats, Kind, fleet
from .pair_sweeps import sweep

FLEETS = int(os.environ.get("CCBED_BENCH_FLEETS", "20"))
SWEEPS = int(os.environ.get("CCBED_BENCH_SWEEPS", "100"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "9000000"))
OTAVA = os.environ.get("CCBED_OTAVA", "")
#: The first night that is judged, and the range in which defects begin.
FIRST, ONSETS = 30, 8
CASES: tuple[tuple[Kind, float, int, int], ...] = (
    ("step", 0.05, 3, 95), ("step", 0.05, 6, 0), ("drift", 0.003, 20, 90), ("intermittent", 0.0, 5, 90),
)  # fmt: skip
GATES = ("relative", "intermittent", "drift")
#: Nights of a sound fleet: every third, as a false failure lasts for some.
SOUND = range(FIRST, 60, 3)
#: How many of 20 metrics a defect shows in.
METRICS = (1, 5)


def report(line: str) -> None:
    """To the terminal and to the file, at once: a run that is cut off keeps what it has."""
    table.OUT.mkdir(parents=True, exist_ok=True)
    with (table.OUT / "fleets.md").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def judge(slowness: Floats, nights: range) -> Iterator[tuple[Any, dict[str, Any]]]:
    """By night: which nodes were measured, and by gate the result, nodes x metrics."""
    medians = robust.median(slowness, axis=-1)
    excess = deviations.deviations(medians)
    for night in nights:
        series = deviations.long_deviations(medians[: night + 1])
        measured = ~np.isnan(medians[night]).all(axis=1)
        results: tuple[Any, ...] = (
            relative.judge(excess[: night + 1], series), intermittent.judge(slowness[: night + 1]), drift.judge(series)
        )  # fmt: skip
        yield measured, dict(zip(GATES, results, strict=True))


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(("kind", "size", "within", "reach"), CASES)
def test_detection(kind: Kind, size: float, within: int, reach: int) -> None:
    """Named: a gate warns of the node and metric, or fails them. Metrics are judged on their own: only affected ones are."""
    hits = {count: dict.fromkeys((*GATES, "named", "failed"), 0) for count in METRICS}
    for seed in range(SEED, SEED + FLEETS):
        begin = FIRST + seed % ONSETS
        synthetic = fleet(seed, Defect(kind=kind, night=begin, metrics=max(METRICS), size=size))
        slowness = synthetic.slowness[:, :, list(synthetic.affected)]
        nights = [results for _, results in judge(slowness, range(begin, begin + within))]
        for count, row in hits.items():
            failed = {gate for results in nights for gate in GATES if results[gate].fails[0, :count].any()}
            warned = any(result.warns[0, :count].any() for results in nights for result in results.values())
            for name in failed:
                row[name] += 1
            row["failed"] += bool(failed)
            row["named"] += bool(failed) or warned
    for count, row in hits.items():
        named, failed_share = row["named"] / FLEETS, row["failed"] / FLEETS
        by_gate = ", ".join(f"{gate} {row[gate] / FLEETS:.1%}" for gate in GATES)
        report(
            f"| {kind} of {size or '1 in 5 repeats'} in {count} of 20 metrics, within {within} nights | named {named:.1%}, "
            f"failed {failed_share:.1%} ({by_gate}) | {f'{reach} %' if reach else 'none'} | "
            f"{FLEETS} fleets from seed {SEED} |"
        )
        assert named


@pytest.mark.bench
@pytest.mark.timeout(36_000)
def test_false_failures() -> None:
    fails, warns, total = dict.fromkeys((*GATES, "any"), 0), dict.fromkeys((*GATES, "any"), 0), 0
    for seed in range(SEED, SEED + FLEETS):
        for measured, results in judge(fleet(seed).slowness, SOUND):
            total += int(measured.sum())
            for counts, outcome in ((fails, "fails"), (warns, "warns")):
                by_gate = {gate: getattr(result, outcome).any(axis=1) & measured for gate, result in results.items()}
                by_gate["any"] = np.logical_or.reduce(list(by_gate.values()))
                for gate, nodes in by_gate.items():
                    counts[gate] += int(nodes.sum())
    for name, counts, reach in (("failures", fails, "1e-4"), ("warnings or failures", warns, "none")):
        of_gates = ", ".join(f"{gate} {counts[gate]}" for gate in GATES)
        report(
            f"| false {name} per node-night | {counts['any'] / total:.1e}: {counts['any']} ({of_gates}) | {reach} | "
            f"{total} node-nights, {FLEETS} fleets from seed {SEED} |"
        )
    assert total


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(
    ("size", "reach"), [(0.0, "none named"), (0.05, "none"), (0.075, "none"), (0.1, "95 %"), (0.15, "none"), (0.2, "99 %")]
)  # fmt: skip
def test_culprits(size: float, reach: str) -> None:
    """Right: the parts that are named, and no others. By the number of slow parts."""
    right, total, undecided = Counter[int](), Counter[int](), 0
    for seed in range(SEED, SEED + SWEEPS):
        case = sweep(seed, size or 0.1, defects=None if size else 0)
        result = pairs.solve(case.rates, case.nodes, case.groups)
        total[len(case.truth)] += 1
        right[len(case.truth)] += {(culprit.kind, culprit.parts) for culprit in result.culprits} == case.truth
        undecided += bool(result.alternatives)
    by_number = ", ".join(f"{right[count] / total[count]:.1%} with {count} slow" for count in sorted(total))
    report(
        f"| pair sweeps at {size:.1%}: exactly the culprits | {right.total() / SWEEPS:.1%} ({by_number}; "
        f"{undecided} cannot tell) | {reach} | "
        f"{SWEEPS} sweeps from seed {SEED} |"
    )
    assert right


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("least_nights", [1, 2])
def test_bound_of_steps(least_nights: int) -> None:
    """No gate can fail more: the best test that knows all but the metric."""
    best = bounds.power(1e-4, 0.05, 3, least_nights=least_nights)
    report(
        f"| bound: step of 0.05 in 1 of 20 metrics, within 3 nights, {least_nights} of them measured | failed at most {best:.1%} | none | "
        "40000 nodes |"
    )
    assert 0.5 < best < 1


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
        area, shares = rivals.roc(values[:, 0], values[:, 1:].ravel())
        curve = ", ".join(f"{share:.0%} at {rate:.1%}" for rate, share in zip(rivals.FALSE_RATES, shares, strict=True))
        report(
            f"| ROC, {kind}, 1 metric, night {within}: {name} | area {area:.3f}; {curve} | not judged | {FLEETS} fleets from seed {SEED} |"
        )
    assert methods["ccbed"]


def _cells(seed: int, synthetic: Fleet) -> list[tuple[int, int]]:
    """Node and metric: the defect first, then others of other nodes."""
    rng = np.random.default_rng(seed)
    nodes, metrics = synthetic.slowness.shape[1:3]
    others = [(int(rng.integers(1, nodes)), int(rng.integers(metrics))) for _ in range(40)]
    return [(0, synthetic.affected[0]), *others]
