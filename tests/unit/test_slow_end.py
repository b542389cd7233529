"""Which end of a slow link is slow, by the directions that the probe measured."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.views.collectives.directions import Direction, slow_end

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
