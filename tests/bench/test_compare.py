"""Pairs of runs of a collective, simulated and on shaped links: a link that is 5 % slower is found, equal runs are not called changed.

``CCBED_BENCH_PAIRS`` is the number of pairs on shaped links, ``CCBED_BENCH_SEED`` draws the nodes whose links are slow.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from orchestrator.model.run import Run
from orchestrator.store import bundle
from orchestrator.views import comparison

from ..unit import collective_runs, simulated
from .test_collectives import Fabric

OUT = Path(__file__).parent / "out"
PAIRS, ITERATIONS, SIZES = 100, 30, (131_072, 971_048)
#: On links of 145 Mbit/s an iteration takes 0.18 s, so that the wire dominates on two cores as well.
SIZE = 2 << 20
REAL_PAIRS = int(os.environ.get("CCBED_BENCH_PAIRS", "20"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
NODES = 4


def measured(seed: int, slow: float = 1.0) -> Run:
    """An all-reduce by a ring of 4 in two sizes, with 5 % of noise; the link from 1 to 2 has ``slow`` of the rate."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm="ring", bytes=size, iterations=ITERATIONS,
            gang=simulated.Gang(
                schedules=simulated.ring(4, size), seed=seed, noise=0.05, slow={(1, 2): slow} if slow < 1 else {}
            ),
        )
        for size in SIZES
    ]  # fmt: skip
    return collective_runs.run(parts)


def test_a_slower_link_is_found_and_equal_runs_are_equal() -> None:
    hits = wrong = 0
    for number in range(PAIRS):
        before, same, slower = measured(3 * number), measured(3 * number + 1), measured(3 * number + 2, 0.95)
        wrong += is_changed(before, same)
        hits += is_slower(before, slower)
    text = (
        f"# Comparison of {ITERATIONS} iterations, simulated\n\nOf {PAIRS} pairs with one link 5 % slower {hits} found; "
        f"of {PAIRS} equal pairs {wrong} called changed.\n"
    )
    OUT.mkdir(exist_ok=True)
    (OUT / "compare.md").write_text(text)
    print(text)
    assert hits >= 95
    assert wrong <= 1


def is_changed(before: Run, after: Run) -> bool:
    return any(row.verdict in ("slower", "faster") for row in comparison.compare(before, after).rows)


def is_slower(before: Run, after: Run) -> bool:
    return any(row.verdict == "slower" for row in comparison.compare(before, after).rows)


def carry_out(fabric: Fabric, slow_node: int | None) -> Run:
    """An all-reduce by a ring; what ``slow_node`` sends has 95 % of the rate from the first iteration on."""
    slow_link = {"node": f"n{slow_node}", "at": {"step": 1}, "direction": "out", "percent": 95}
    trial = {
        "trial": "pair", "workload": "collective", "recovery": {"policy": "none"}, "world": {"nodes": NODES},
        "params": {"operation": "all-reduce", "algorithm": ["ring"], "sizes": [SIZE], "iterations": ITERATIONS},
        "faults": [] if slow_node is None else [{"slow-link": slow_link}],
    }  # fmt: skip
    file = fabric.folder / "pair.json"
    file.write_text(json.dumps(trial))
    fabric.call("run", str(file), "--bed", fabric.name, timeout_s=600.0)
    return bundle.load((fabric.folder / "runs/latest").resolve())


def test_a_slower_link_is_found_in_runs_on_shaped_links(tmp_path: Path) -> None:
    """Equal runs and runs with a slow link alternate; an equal run is compared with the next two. A first run warms the bed up."""
    draw = random.Random(SEED)
    slower: list[bool] = []
    changed: list[bool] = []
    OUT.mkdir(exist_ok=True)
    with Fabric(tmp_path, "bench-compare", "145mbit", nodes=NODES) as fabric:
        carry_out(fabric, None)
        before = carry_out(fabric, None)
        for _ in range(REAL_PAIRS):
            slower.append(is_slower(before, carry_out(fabric, draw.randrange(NODES))))
            after = carry_out(fabric, None)
            changed.append(is_changed(before, after))
            before = after
            text = (
                f"# Comparison of {ITERATIONS} iterations on links of 145 Mbit/s\n\nOf {len(slower)} pairs with one link 5 % slower "
                f"{sum(slower)} found; of {len(changed)} equal pairs {sum(changed)} called changed. Load {os.getloadavg()[0]:.1f}.\n"
            )
            (OUT / f"compare-links-{SEED}.md").write_text(text)
    print(text)
    assert sum(slower) >= 0.95 * len(slower)
    assert sum(changed) <= max(1, len(changed) // 100)
