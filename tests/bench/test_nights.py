"""The judge of nights on seeded fleets: how soon defects are named, and how often sound nodes are.

CCBED_BENCH_FLEETS (default 200) says how many for each defect, CCBED_BENCH_CLEAN (default 100,000) how many sound node-nights;
CCBED_BENCH_SEED is the first seed. The rows are printed, and written to out/nights.md as soon as each is measured.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.nightly.statistics import night_statistics

from . import nights, table
from .nights import NETWORK, Floats, slide, step

FLEETS = int(os.environ.get("CCBED_BENCH_FLEETS", "200"))
CLEAN = int(os.environ.get("CCBED_BENCH_CLEAN", "100000"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
#: What, nodes, earlier nights, within, the defect, its metric, the share that must be named.
CASES: tuple[tuple[str, int, int, int, Callable[[Floats], None], int, float], ...] = (
    ("50 %", 3, 1, 1, step(0.5, 1), 0, 0.95),
    ("20 %", 3, 2, 1, step(0.2, 2), 0, 0.75),
    ("20 %", 3, 2, 3, step(0.2, 2), 0, 0.95),
    *(("10 %", nodes, 5, 2, step(0.1, 5), 0, 0.95) for nodes in (4, 8)),
    *(("8 %", nodes, 20, 2, step(0.08, 20), 0, 0.95) for nodes in (8, 16)),
    *(("5 %", nodes, 20, 4, step(0.05, 20), 0, 0.95) for nodes in (8, 16)),
    *(("0.3 % a night", nodes, 20, 14, slide(0.003, 20), 0, 0.95) for nodes in (8, 16)),
    *(("20 % of a network", nodes, 20, 2, step(0.2, 20, NETWORK), NETWORK, 0.95) for nodes in (8, 16)),
)


report = functools.partial(table.report, "nights.md")


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("what", "nodes", "earlier", "within", "defect", "metric", "reach"), CASES)
def test_a_slow_node_is_named(
    what: str, nodes: int, earlier: int, within: int, defect: Callable[[Floats], None], metric: int, reach: float
) -> None:
    naming = nights.find(SEED, FLEETS, nodes, earlier, within, defect, metric)
    right = 1 - np.mean(naming.others[naming.named])
    report(
        f"| {nodes} nodes, {earlier} earlier nights, {what} within {within} | named {np.mean(naming.named):.1%}, failed "
        f"{np.mean(naming.failed):.1%}, no other node {right:.1%} | {reach:.0%} | {FLEETS} fleets, seed {SEED} |"
    )
    assert np.mean(naming.named) >= reach and right >= 0.98


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [3, 4, 8, 16])
def test_all_nodes_are_one_finding_and_a_node_that_comes_and_goes_fails(nodes: int) -> None:
    common = nights.find(SEED, FLEETS, nodes, 5, 1, step(0.15, 5, node=None), is_common=True)
    share = np.mean(common.named & ~common.others)
    report(f"| {nodes} nodes, 5 earlier nights, all 15 % | one finding of the fleet {share:.1%} | 95 % | {FLEETS} |")
    third = nights.find(SEED, FLEETS, nodes, 5, 8, step(0.2, 5, every=3))
    text = f"20 % every third night within 8 | failed {np.mean(third.failed):.1%} | 95 %"
    report(f"| {nodes} nodes, 5 earlier nights, {text} | {FLEETS} |")
    assert share >= 0.95 and np.mean(third.failed) >= 0.95


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize(
    "kind", ["sound", "an update of 15 % that was accepted", "three quarters of the noise between passes"]
)
def test_sound_nodes_are_seldom_named(nodes: int, kind: str) -> None:
    fleets = max(1, CLEAN // nodes // 50)
    if kind.startswith("an update"):
        clean = nights.judge_clean(SEED, fleets, nodes, 61, defect=step(0.15, 10, node=None), level=10)
    else:
        clean = nights.judge_clean(SEED, fleets, nodes, 50, passes=0.5 if kind == "sound" else 1.5)
    report(
        f"| {kind}: {nodes} nodes, {clean.node_nights} node-nights | failed {clean.failed / clean.node_nights:.1e} (at most "
        f"{clean.upper(clean.failed):.1e}), warned {clean.warned / clean.node_nights:.1e} | 2e-4, 1e-2 | seed {SEED} |"
    )
    assert clean.warned / clean.node_nights <= 1e-2
    assert clean.upper(clean.failed) <= 2e-4 or kind.startswith("three")


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 16])
def test_nothing_forgives_itself(nodes: int) -> None:
    """A defect of 20 % still fails after 100 nights."""
    fleets = max(1, FLEETS // 10)
    history = nights.fleet(SEED, fleets, nodes, 106, defect=step(0.2, 5))
    *_, last = night_statistics.replay(history)
    is_there = ~np.isnan(last.excess.reshape(nodes, fleets, nights.COUNT)[0, :, 0])
    fails = last.fails.reshape(nodes, fleets, nights.COUNT)[0, :, 0]
    report(
        f"| {nodes} nodes, 20 % for 100 nights | still failed {np.mean(fails[is_there]):.1%} | 100 % | {is_there.sum()} fleets |"
    )
    assert fails[is_there].all()
