"""Culprits of pair sweeps: the right part, two at once, and no name where two explanations fit alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly import classes
from orchestrator.nightly.statistics import pair_sweeps
from tests.bench.pair_sweeps import sweep

NODES = tuple("abcdefgh")
NETWORK = classes.of("link beta", classes.read())


def solve(rates: np.ndarray, nodes: tuple[str, ...], *arguments: Any, **options: Any) -> pair_sweeps.Sweep:
    return pair_sweeps.solve(rates, nodes, NETWORK, *arguments, **options)


def rates(*slow: tuple[int, int], by: float = 0.8, nodes: int = 8, noise: float = 0.005) -> np.ndarray:
    values = 100 * np.exp(np.random.default_rng(3).normal(0, noise, (nodes, nodes, 3)))
    for pair in slow:
        values[pair] *= by
    return values


def row(node: int) -> list[tuple[int, int]]:
    return [(node, other) for other in range(8) if other != node]


def column(node: int) -> list[tuple[int, int]]:
    return [(other, node) for other in range(8) if other != node]


@pytest.mark.parametrize(
    ("slow", "label"),
    [
        ([(1, 2)], "direction b -> c"),
        ([(1, 2), (2, 1)], "link b <-> c"),
        (row(3), "egress d"),
        (column(3), "ingress d"),
        (row(3) + column(3), "node d"),
    ],
)
def test_the_slow_part_is_named_with_its_direction(slow: list[tuple[int, int]], label: str) -> None:
    result = solve(rates(*slow), NODES)
    assert [culprit.label for culprit in result.culprits] == [label]
    assert result.culprits[0].slowdown == pytest.approx(0.2, abs=0.02)
    assert 0.9 < result.culprits[0].confidence <= 0.99
    assert pair_sweeps.judge(result, "busbw").outcome == "warn"


def test_two_slow_nodes_of_eight_are_both_named() -> None:
    slow = {*row(0), *column(0), *row(5), *column(5)}
    result = solve(rates(*slow), NODES)
    assert {culprit.label for culprit in result.culprits} == {"node a", "node f"}


@pytest.mark.parametrize(("nodes", "slow"), [(5, 2), (8, 3), (4, 2), (8, 4)])
def test_slow_nodes_whose_pairs_are_the_most_are_not_the_usual_rate(nodes: int, slow: int) -> None:
    """Without a reference nothing says whether most pairs are slow or the others fast: they differ."""
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and min(a, b) < slow]
    result = solve(rates(*pairs, by=0.5, nodes=nodes), NODES[:nodes])
    assert pair_sweeps.judge(result, "busbw").outcome in ("warn", "unknown")


def test_a_slow_uplink_of_a_switch_group_is_named() -> None:
    groups = {node: "xyz"[index // 4] for index, node in enumerate("abcdefghijkl")}
    slow = [(a, b) for a in range(4) for b in range(4, 12)]
    result = solve(rates(*slow, nodes=12), tuple(groups), groups, reference=np.full((12, 12), 100.0))
    assert [culprit.label for culprit in result.culprits] == ["group egress x"]


def test_two_groups_joined_by_one_slow_way_fit_alike() -> None:
    groups = {node: "xy"[index // 4] for index, node in enumerate(NODES)}
    slow = [(a, b) for a in range(4) for b in range(4, 8)]
    result = solve(rates(*slow), NODES, groups, reference=np.full((8, 8), 100.0))
    assert result.culprits == ()
    assert {culprit.label for culprit in result.alternatives} == {"group egress x", "group ingress y"}
    finding = pair_sweeps.judge(result, "busbw")
    assert finding.outcome == "warn" and "cannot tell" in finding.text and finding.culprits == ()


def test_a_clean_sweep_passes_and_a_noisy_one_is_unknown() -> None:
    assert pair_sweeps.judge(solve(rates(), NODES), "busbw").outcome == "pass"
    noisy = pair_sweeps.judge(solve(rates(noise=0.2), NODES), "busbw")
    assert noisy.outcome == "unknown" and "too much" in noisy.text


def test_clean_sweeps_name_no_part() -> None:
    cases = [sweep(seed, 0.1, defects=0, nodes=16) for seed in range(20)]
    assert [solve(case.rates, case.nodes, case.groups).culprits for case in cases] == [()] * 20


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes_have_no_usual_rate_without_a_reference(nodes: int) -> None:
    finding = pair_sweeps.judge(solve(rates(nodes=nodes), NODES[:nodes]), "busbw")
    assert finding.outcome == "unknown"


def test_two_nodes_with_a_reference_cannot_tell_node_from_link() -> None:
    result = solve(rates((0, 1), (1, 0), nodes=2), NODES[:2], reference=np.full((2, 2), 100.0))
    assert result.culprits == () and len(result.alternatives) > 1


def test_missing_and_equal_values() -> None:
    values = np.full((8, 8, 3), 100.0)
    assert pair_sweeps.judge(solve(values, NODES), "busbw").outcome == "pass"
    values[2, :] = math.nan
    values[4, 5] = 70.0
    assert [culprit.label for culprit in solve(values, NODES).culprits] == ["direction e -> f"]
    assert pair_sweeps.judge(solve(np.full((8, 8, 3), math.nan), NODES), "busbw").outcome == "unknown"


def test_other_traffic_in_one_repeat_names_no_link() -> None:
    values = rates()
    values[1, 2, 0] *= 0.5
    assert solve(values, NODES).culprits == ()


def test_synthetic_sweeps_at_twenty_percent_are_solved() -> None:
    cases = [sweep(seed, 0.2, nodes=24) for seed in range(10)]
    for case in cases:
        result = solve(case.rates, case.nodes, case.groups)
        assert {(culprit.kind, culprit.parts) for culprit in result.culprits} == case.truth


def test_pairs_of_nodes_on_one_host_are_left_out_and_the_others_judged() -> None:
    hosts = {node: f"h{index // 2}" for index, node in enumerate(NODES)}
    inside = [(a, a ^ 1) for a in range(8)]
    result = solve(rates(*inside, (1, 4), by=0.5), NODES, hosts=hosts)
    assert [culprit.label for culprit in result.culprits] == ["direction b -> e"]
    assert (result.pairs, len(result.shared)) == (48, 4)
    assert pair_sweeps.judge(solve(rates(*inside, by=0.5), NODES, hosts=hosts), "rate").outcome == "pass"


def beside_reference(slowdown: np.ndarray, seed: int = 5) -> pair_sweeps.Sweep:
    """``slowdown``: from x to. Directions differ by 2 %, as the reference knows."""
    rng, nodes = np.random.default_rng(seed), len(slowdown)
    usual = 100 * np.exp(rng.normal(0, 0.02, slowdown.shape))
    values = (usual * (1 - slowdown))[..., None] * np.exp(rng.normal(0, 0.005, (nodes, nodes, 5)))
    return solve(values, tuple(f"n{index}" for index in range(nodes)), reference=usual)


@pytest.mark.parametrize("size", [0.07, 0.1, 0.2])
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 16])
def test_a_slowdown_of_all_links_accuses_no_part_and_does_not_pass(nodes: int, size: float) -> None:
    for seed in range(5):
        finding = pair_sweeps.judge(beside_reference(np.full((nodes, nodes), size), seed), "beta")
        assert (finding.culprits, finding.outcome in ("warn", "unknown")) == ((), True)
        assert nodes < 4 or f"pairs together are {size:.0%} slower than usual" in finding.text


@pytest.mark.parametrize("size", [0.1, 0.2])
@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("kind", ["node", "egress", "ingress", "direction"])
def test_one_slow_part_of_a_small_bed_is_named_beside_a_reference(kind: str, nodes: int, size: float) -> None:
    slow = np.zeros((nodes, nodes))
    if kind == "direction":
        slow[1, 2] = size
    else:
        slow[1, :] = 0 if kind == "ingress" else size
        slow[:, 1] = 0 if kind == "egress" else size
    result = beside_reference(slow)
    assert [culprit.label for culprit in result.culprits] == [
        "direction n1 -> n2" if kind == "direction" else f"{kind} n1"
    ]
    assert result.common == 0.0


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_slow_node_is_named_beside_a_slowdown_of_all_links(nodes: int) -> None:
    slow = np.full((nodes, nodes), 0.1)
    slow[1, :] = slow[:, 1] = 0.3
    result = beside_reference(slow)
    assert [culprit.label for culprit in result.culprits] == ["node n1"]
    assert result.common == pytest.approx(0.1, abs=0.01)
    assert "node n1 is 2" in (text := pair_sweeps.judge(result, "beta").text) and "are 10% slower than usual" in text


@pytest.mark.parametrize("nodes", [5, 8])
def test_links_that_all_got_slower_by_different_shares_accuse_no_node(nodes: int) -> None:
    for seed in range(5):
        slow = np.random.default_rng(seed).uniform(0.04, 0.2, (nodes, nodes))
        finding = pair_sweeps.judge(beside_reference(slow, seed), "beta")
        assert (finding.culprits, finding.outcome in ("warn", "unknown")) == ((), True)


def test_faster_links_are_no_slowdown_of_the_others() -> None:
    slow = np.full((3, 3), -0.2)
    slow[0, 2] = slow[2, 0] = 0.0
    assert beside_reference(slow).culprits == ()


def test_a_node_or_a_direction_that_was_not_measured_is_named_and_nothing_passes() -> None:
    values = rates(nodes=6)
    values[5, :] = values[:, 5] = math.nan
    finding = pair_sweeps.judge(solve(values, NODES[:6]), "rate")
    assert (finding.outcome, finding.text.partition("; not measured: ")[2]) == ("unknown", "f")
    values = rates((1, 2))
    values[3, 4] = math.nan
    finding = pair_sweeps.judge(solve(values, NODES), "rate")
    assert (finding.culprits, finding.text.partition("; not measured: ")[2]) == (("direction b -> c",), "d -> e")
    apart = ~np.eye(8, dtype=bool)
    apart[3, 4] = False
    assert solve(values, NODES, expected=apart).missing == ()
    assert pair_sweeps.judge(solve(rates(), NODES), "rate").outcome == "pass"
