"""What comparisons claim, on shaped links: equal runs, a link that is 10 % slower, sweeps; live, and resampled from their iterations.

``CCBED_BENCH_PAIRS`` is the number of live pairs, ``CCBED_BENCH_RUNS`` of runs per side, ``CCBED_BENCH_SWEEPS`` of sweeps,
``CCBED_BENCH_LOAD`` of busy processes beside them, ``CCBED_BENCH_SEED`` draws the nodes whose links are slow, and the pairs.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low

import numpy as np
import pytest

from orchestrator.collectives import views as collectives
from orchestrator.model.run import Run
from orchestrator.store import bundle
from orchestrator.views import comparison
from orchestrator.views.comparison import Figure

from .bed import load
from .test_collectives import Fabric

pytestmark = [pytest.mark.bench, pytest.mark.root, pytest.mark.timeout(36_000)]

OUT = Path(__file__).parent / "out"
PAIRS = int(os.environ.get("CCBED_BENCH_PAIRS", "20"))
RUNS = int(os.environ.get("CCBED_BENCH_RUNS", "24"))
SWEEPS = int(os.environ.get("CCBED_BENCH_SWEEPS", "20"))
LOAD = int(os.environ.get("CCBED_BENCH_LOAD", "0"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
#: Runs of a group, iterations of a run, iterations of a block, resampled pairs.
GROUP, ITERATIONS, BLOCK, RESAMPLED = 3, 100, 10, 1000
#: 22 ms on links of 145 Mbit/s.
NODES, SIZE = 4, 256 * 1024
CHANGED = ("slower", "faster")
#: Beside more load, runs spread by more than three of them can tell.
QUIET = 2.0


def carry_out(fabric: Fabric, params: dict[str, object], slow_node: int | None = None) -> Run:
    """A collective; what ``slow_node`` sends has 90 % of the rate from the first iteration on."""
    slow_link = {"node": f"n{slow_node}", "at": {"step": 1}, "direction": "out", "percent": 90}
    trial = {
        "trial": "pair", "workload": "collective", "recovery": {"policy": "none"}, "world": {"nodes": NODES}, "params": params,
        "faults": [] if slow_node is None else [{"slow-link": slow_link}],
    }  # fmt: skip
    file = fabric.folder / "pair.json"
    file.write_text(json.dumps(trial))
    fabric.call("run", str(file), "--bed", fabric.name, timeout_s=600.0)
    return bundle.load((fabric.folder / "runs/latest").resolve())


def seconds(run: Run) -> list[float]:
    measured = collectives.measured(run, "max_rank")
    assert measured is not None
    return [float(value) for value in measured.data[0][1]]


def of_groups(before: Sequence[list[float]], after: Sequence[list[float]]) -> str:
    """The verdict on two groups of runs, by the median iteration of each run, as ``ccbed compare`` has it."""
    sides = [[{"x": Figure(value=median_low(run))} for run in side] for side in (before, after)]
    return comparison.compare_figures(*sides)[0].verdict


def of_single_runs(before: list[float], after: list[float]) -> str:
    row = comparison.of_samples("x", np.array(before), np.array(after))
    return row.verdict if row else "not resolved"


def live(draw: random.Random, before: list[list[float]], after: list[list[float]]) -> str:
    """Groups of whole runs. Equal runs are in one list, of which both groups are drawn."""
    if before is after:
        runs = draw.sample(before, 2 * GROUP)
        return of_groups(runs[:GROUP], runs[GROUP:])
    return of_groups(draw.sample(before, GROUP), draw.sample(after, GROUP))


def resampled(draw: random.Random, before: list[list[float]], after: list[list[float]]) -> str:
    """Groups of runs that are made of blocks of consecutive iterations, drawn with replacement."""

    def run(runs: list[list[float]]) -> list[float]:
        recorded = draw.choice(runs)
        starts = [draw.randrange(len(recorded) - BLOCK + 1) for _ in range(ITERATIONS // BLOCK)]
        return [sample for start in starts for sample in recorded[start : start + BLOCK]]

    return of_groups([run(before) for _ in range(GROUP)], [run(after) for _ in range(GROUP)])


def test_equal_runs_are_not_called_changed_and_ten_percent_are_found(tmp_path: Path) -> None:
    """Equal runs and runs with a slow link take turns. A first run warms the bed up."""
    draw = random.Random(SEED)
    params: dict[str, object] = {"algorithm": ["ring"], "sizes": [SIZE], "iterations": ITERATIONS, "probe": False}
    equal: list[list[float]] = []
    slower: list[list[float]] = []
    with Fabric(tmp_path, "bench-compare", "145mbit", nodes=NODES) as fabric, load(LOAD):
        carry_out(fabric, params)
        for _ in range(RUNS):
            equal.append(seconds(carry_out(fabric, params)))
            slower.append(seconds(carry_out(fabric, params, draw.randrange(NODES))))
    rows = {
        "equal, live": Counter(live(draw, equal, equal) for _ in range(PAIRS)),
        "equal, resampled": Counter(resampled(draw, equal, equal) for _ in range(RESAMPLED)),
        "a link 10 % slower, live": Counter(live(draw, equal, slower) for _ in range(PAIRS)),
        "a link 10 % slower, resampled": Counter(resampled(draw, equal, slower) for _ in range(RESAMPLED)),
        "equal, single runs, live": Counter(of_single_runs(*draw.sample(equal, 2)) for _ in range(PAIRS)),
    }
    text = write(f"compare-links-{SEED}-{LOAD}", rows)
    for name in ("equal, live", "equal, resampled", "equal, single runs, live"):
        assert sum(rows[name][verdict] for verdict in CHANGED) <= rows[name].total() // 100, text
    for name in ("a link 10 % slower, live", "a link 10 % slower, resampled"):
        assert rows[name].keys() <= {"slower", "not resolved"}, text
        assert rows[name]["slower"] >= 0.95 * rows[name].total() or os.getloadavg()[1] > QUIET, text


def test_no_size_of_a_sweep_is_equal_whose_medians_differ(tmp_path: Path) -> None:
    rows: dict[str, Counter[str]] = {"sizes": Counter()}
    params: dict[str, object] = {
        "operation": "all-gather", "algorithm": ["ring", "bruck", "library"], "sizes": ["4K:1M:4"], "iterations": 20,
        "probe": False,
    }  # fmt: skip
    with Fabric(tmp_path, "bench-sweeps", "1gbit", nodes=NODES) as fabric, load(LOAD):
        for _ in range(SWEEPS):
            measured = collectives.measured(carry_out(fabric, params))
            assert measured is not None
            for fastest in measured.fastest:
                rows["sizes"][outcome(measured, fastest)] += 1
    text = write(f"compare-sweeps-{SEED}-{LOAD}", rows)
    assert not rows["sizes"]["equal although medians differ by more than 4 %"], text


def outcome(measured: collectives.Measured, fastest: collectives.Fastest) -> str:
    if fastest.clear:
        return "one fastest"
    if fastest.unresolved:
        return "not resolved"
    medians = [
        row.time.p50
        for row in measured.rows
        if row.time and row.case.bytes == fastest.bytes and row.case.algorithm in fastest.algorithms
    ]
    return "equal" if max(medians) <= 1.04 * min(medians) else "equal although medians differ by more than 4 %"


def write(name: str, rows: dict[str, Counter[str]]) -> str:
    lines = [f"# Comparisons, load {os.getloadavg()[0]:.1f}", ""]
    for what, counts in rows.items():
        named = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        lines.append(f"- {what}: {named} of {counts.total()}")
    text = "\n".join(lines) + "\n"
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.md").write_text(text)
    print(text)
    return text
