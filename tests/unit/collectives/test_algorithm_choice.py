"""Algorithms as users write them, and schedules for another root."""

from __future__ import annotations

import pytest

from orchestrator.algorithms import binomial_tree, chain, halving_doubling, ring
from orchestrator.model import algorithm
from orchestrator.model.schedule import Copy, Cost, Recv, Send, Step, rerooted


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("ring", ("ring", {})),
        ("chain:segments=16", ("chain", {"segments": "16"})),
        (" chain : segments = 4 , more = x ", ("chain", {"segments": "4", "more": "x"})),
    ],
)
def test_a_name_and_its_parameters(text: str, result: tuple[str, dict[str, str]]) -> None:
    assert algorithm.parse(text) == result


@pytest.mark.parametrize("text", ["chain:", "chain:segments", "chain:segments=", "chain:=4", "chain:a=1,a=2"])
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be NAME or NAME:KEY=VALUE"):
        algorithm.parse(text)


def test_parameters_get_their_types_and_the_label_says_those_that_differ() -> None:
    assert algorithm.choose("chain:segments=4", chain).params == chain.Params(segments=4)
    assert algorithm.choose("chain:segments=4", chain).label == "chain:segments=4"
    assert algorithm.choose("chain", chain).label == algorithm.choose("chain:segments=16", chain).label == "chain"
    plain = algorithm.choose("binomial-tree:acknowledged=false", binomial_tree)
    assert plain.params == binomial_tree.Params(acknowledged=False)
    assert plain.label == "binomial-tree:acknowledged=false"


@pytest.mark.parametrize(
    ("text", "module", "expected"),
    [
        ("ring:segments=4", ring, "ring has no parameter segments"),
        ("chain:length=4", chain, "chain has no parameter length; it has segments"),
        ("chain:segments=four", chain, r"chain: segments: must be a whole number \(got 'four'\)"),
        ("chain:segments=0", chain, r"chain: segments: must be >= 1 \(got 0\)"),
        ("binomial-tree:acknowledged=maybe", binomial_tree, "acknowledged: must be true or false"),
    ],
)
def test_wrong_parameters_are_told(text: str, module: object, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        algorithm.choose(text, module)


def test_what_it_cannot_do_is_refused_by_name() -> None:
    chosen = algorithm.choose("ring", ring)
    assert chosen.refuses("barrier", 4) == "ring does not do barrier; it does all-reduce, all-gather, reduce-scatter"
    assert chosen.refuses("all-reduce", 7) == ""
    halving = algorithm.choose("halving-doubling", halving_doubling)
    assert "among 2, 4, 8, … ranks, not 6; ring and pairwise do any number" in halving.refuses("reduce-scatter", 6)
    assert halving.refuses("reduce-scatter", 8) == halving.refuses("all-reduce", 6) == ""


def test_another_root_turns_ranks_and_the_blocks_that_belong_to_them() -> None:
    steps = (Step((Send(1, (1, 2)),), (Recv(3, (3,), reduce=True),), (Copy(0, 3),)),)
    turned = rerooted(steps, "gather", root=3, world=4)
    assert turned == (Step((Send(0, (0, 1)),), (Recv(2, (2,), reduce=True),), (Copy(3, 2),)),)
    assert rerooted(steps, "broadcast", root=3, world=4)[0].sends == (Send(0, (1, 2)),)
    chosen = algorithm.choose("binomial-tree", binomial_tree)
    assert chosen.schedule("scatter", 3, 4, root=3) == rerooted(chosen.schedule("scatter", 0, 4), "scatter", 3, 4)


def test_seconds_follow_from_start_ups_and_bytes() -> None:
    assert Cost(6, 1.5).seconds(971_048, 1e-4, 8e-8) == pytest.approx(6e-4 + 1.5 * 971_048 * 8e-8)
