"""Which end of a slow link is slow, by the directions that the probe measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from orchestrator.collectives.views import finding_text
from orchestrator.collectives.views.directions import Direction, slow_end

from ..simulated import Gang
from .test_collective_stragglers import ALGORITHMS, catalogue, measured

BETA = 8 / 140e6


def probed(*slow: tuple[int, int], world: int = 4) -> list[Direction]:
    betas = {ends: BETA * (2 if ends in slow else 1) for ends in itertools.permutations(range(world), 2)}
    return [
        Direction(sender=a, receiver=b, alpha_s=5e-5, beta=beta, interval=(beta * 0.996, beta * 1.004))
        for (a, b), beta in betas.items()
    ]


@pytest.mark.parametrize(
    ("slow", "end"),
    [
        ([(1, 0), (1, 2), (1, 3)], "sending"),
        ([(0, 2), (1, 2), (3, 2)], "receiving"),
        ([(1, 2)], "wire"),
        ([], ""),
        ([(1, 2), (1, 3)], ""),
        ([(3, 0)], ""),
    ],
    ids=["sending", "receiving", "wire", "later", "some", "another"],
)
def test_the_probe_says_which_end_is_slow(slow: list[tuple[int, int]], end: str) -> None:
    assert slow_end(1, 2, probed(*slow)) == end


def test_a_slow_node_in_both_directions_is_neither_end_alone() -> None:
    slow = [(1, peer) for peer in (0, 2, 3)] + [(peer, 1) for peer in (0, 2, 3)]
    assert slow_end(1, 2, probed(*slow)) == "sending"
    assert slow_end(0, 1, probed(*slow)) == "receiving"


def test_two_nodes_have_no_other_peers_to_compare_with() -> None:
    assert slow_end(0, 1, probed((0, 1), world=2)) == ""


def phrases_of(name: str, operation: str, world: int, slow: Mapping[tuple[int, int], float], *, one_port: bool) -> str:
    (chosen,) = [chosen for chosen, able in ALGORITHMS if (chosen.name, able) == (name, operation)]
    gang = Gang(schedules=catalogue(chosen, operation, world), slow=slow, watched=True, one_port=one_port)
    return finding_text.straggler(measured(gang, iterations=20, cases=2))


EXCHANGES = [
    ("recursive-doubling", "all-reduce"), ("recursive-doubling", "all-gather"), ("halving-doubling", "all-reduce"),
    ("pairwise", "all-to-all"), ("pairwise", "reduce-scatter"), ("bruck", "all-gather"), ("ring", "all-reduce"),
]  # fmt: skip


@pytest.mark.parametrize("one_port", [False, True])
@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize(("name", "operation"), EXCHANGES)
def test_no_end_is_called_slow_that_is_not(name: str, operation: str, world: int, one_port: bool) -> None:
    """Without a probe that shows it. A rank is slow in one direction with all others, or one wire is slow."""
    others = [rank for rank in range(world) if rank != 1]
    into = phrases_of(name, operation, world, {(rank, 1): 0.5 for rank in others}, one_port=one_port)
    out = phrases_of(name, operation, world, {(1, rank): 0.5 for rank in others}, one_port=one_port)
    assert "sends slowly" not in into and "receives slowly" not in out
    assert "only this direction" not in into + out


def test_in_a_ring_the_ends_of_a_slow_link_cannot_be_told_apart() -> None:
    """The control: no rank has messages with another one to compare with."""
    text = phrases_of("ring", "all-reduce", 4, {(0, 1): 0.5}, one_port=False)
    assert "the link n0 to n1 carries" in text and "cannot tell n0's sending, n1's receiving and the wire apart" in text
