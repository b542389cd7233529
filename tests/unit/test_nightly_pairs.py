"""Culprits of pair sweeps: the right part, two at once, and no name where two explanations fit alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.nightly.gates import pairs
from tests.bench.pair_sweeps import sweep

NODES = tuple("abcdefgh")


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
    result = pairs.solve(rates(*slow), NODES)
    assert [culprit.label for culprit in result.culprits] == [label]
    assert result.culprits[0].slowdown == pytest.approx(0.2, abs=0.02)
    assert 0.9 < result.culprits[0].confidence <= 0.99
    assert pairs.judge(result, "busbw").outcome == "warn"


def test_two_slow_nodes_of_eight_are_both_named() -> None:
    slow = {*row(0), *column(0), *row(5), *column(5)}
    result = pairs.solve(rates(*slow), NODES)
    assert {culprit.label for culprit in result.culprits} == {"node a", "node f"}


def test_a_slow_uplink_of_a_switch_group_is_named() -> None:
    groups = {node: "xyz"[index // 4] for index, node in enumerate("abcdefghijkl")}
    slow = [(a, b) for a in range(4) for b in range(4, 12)]
    result = pairs.solve(rates(*slow, nodes=12), tuple(groups), groups, reference=np.full((12, 12), 100.0))
    assert [culprit.label for culprit in result.culprits] == ["group egress x"]


def test_two_groups_joined_by_one_slow_way_fit_alike() -> None:
    groups = {node: "xy"[index // 4] for index, node in enumerate(NODES)}
    slow = [(a, b) for a in range(4) for b in range(4, 8)]
    result = pairs.solve(rates(*slow), NODES, groups, reference=np.full((8, 8), 100.0))
    assert result.culprits == ()
    assert {culprit.label for culprit in result.alternatives} == {"group egress x", "group ingress y"}
    finding = pairs.judge(result, "busbw")
    assert finding.outcome == "warn" and "cannot tell" in finding.text and finding.culprits == ()


def test_a_clean_sweep_passes_and_a_noisy_one_is_unknown() -> None:
    assert pairs.judge(pairs.solve(rates(), NODES), "busbw").outcome == "pass"
    noisy = pairs.judge(pairs.solve(rates(noise=0.2), NODES), "busbw")
    assert noisy.outcome == "unknown" and "too much" in noisy.text


def test_clean_sweeps_name_no_part() -> None:
    cases = [sweep(seed, 0.1, defects=0, nodes=16) for seed in range(20)]
    assert [pairs.solve(case.rates, case.nodes, case.groups).culprits for case in cases] == [()] * 20


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes_have_no_usual_rate_without_a_reference(nodes: int) -> None:
    finding = pairs.judge(pairs.solve(rates(nodes=nodes), NODES[:nodes]), "busbw")
    assert finding.outcome == "unknown"


def test_two_nodes_with_a_reference_cannot_tell_node_from_link() -> None:
    result = pairs.solve(rates((0, 1), (1, 0), nodes=2), NODES[:2], reference=np.full((2, 2), 100.0))
    assert result.culprits == () and len(result.alternatives) > 1


def test_missing_and_equal_values() -> None:
    values = np.full((8, 8, 3), 100.0)
    assert pairs.judge(pairs.solve(values, NODES), "busbw").outcome == "pass"
    values[2, :] = math.nan
    values[4, 5] = 70.0
    assert [culprit.label for culprit in pairs.solve(values, NODES).culprits] == ["direction e -> f"]
    assert pairs.judge(pairs.solve(np.full((8, 8, 3), math.nan), NODES), "busbw").outcome == "unknown"


def test_other_traffic_in_one_repeat_names_no_link() -> None:
    values = rates()
    values[1, 2, 0] *= 0.5
    assert pairs.solve(values, NODES).culprits == ()


def test_synthetic_sweeps_at_twenty_percent_are_solved() -> None:
    cases = [sweep(seed, 0.2, nodes=24) for seed in range(10)]
    for case in cases:
        result = pairs.solve(case.rates, case.nodes, case.groups)
        assert {(culprit.kind, culprit.parts) for culprit in result.culprits} == case.truth


def test_pairs_of_nodes_on_one_host_are_left_out_and_the_others_judged() -> None:
    hosts = {node: f"h{index // 2}" for index, node in enumerate(NODES)}
    inside = [(a, a ^ 1) for a in range(8)]
    result = pairs.solve(rates(*inside, (1, 4), by=0.5), NODES, hosts=hosts)
    assert [culprit.label for culprit in result.culprits] == ["direction b -> e"]
    assert (result.pairs, len(result.shared)) == (48, 4)
    assert pairs.judge(pairs.solve(rates(*inside, by=0.5), NODES, hosts=hosts), "rate").outcome == "pass"
