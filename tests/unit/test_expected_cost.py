"""The cost of a case by the model: formulas for equal blocks, the schedule for uneven ones and for shared uplinks."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.model.bed import LinkSpec
from orchestrator.model.schedule import OPERATIONS
from orchestrator.rank import cases, choice, expected, fit, known

GBIT = 10**9
TIERS = LinkSpec(rate=GBIT, groups=2, uplink=GBIT)


def case(operation: str, world: int = 4, **more: Any) -> cases.Case:
    return cases.cases([cases.Item(operation=operation, bytes=4 * 27720, **more)], world)[0]


def volume(one: cases.Case, name: str, tiers: expected.Uplinks | None = None) -> float:
    algorithm = known.find(name)
    assert algorithm is not None
    return expected.cost(one, algorithm, tiers).volume


@pytest.mark.parametrize("name", ["pairwise", "direct"])
def test_uneven_shares_cost_what_the_busiest_port_moves(name: str) -> None:
    assert volume(case("all-to-all", shares=(0.1, 0.1, 0.1, 0.7)), name) == pytest.approx(2.1, rel=1e-3)
    assert volume(case("all-to-all", shares=(0.25,) * 4), name) == pytest.approx(0.75)


def test_equal_shares_by_the_schedule_cost_what_the_formula_says() -> None:
    """Shares that hardly differ: the schedule is followed, and agrees."""
    for one in known.able("all-to-all", 4):
        even, nearly = (
            volume(case("all-to-all", shares=shares), one.name) for shares in ((), (0.25, 0.25, 0.2501, 0.2499))
        )
        assert nearly == pytest.approx(even, rel=2e-3), one.name


def test_uplinks_as_wide_as_all_their_ports_change_nothing() -> None:
    wide = expected.uplinks(LinkSpec(rate=GBIT, groups=2, uplink=1000 * GBIT), 8, 8)
    for operation in OPERATIONS:
        for one in known.able(operation, 8):
            algorithm = one.cost(operation, 8)
            assert expected.cost(case(operation, 8), one, wide).volume == pytest.approx(algorithm.volume), one.name


def test_what_crosses_a_shared_uplink_at_once_takes_longer() -> None:
    tiers = expected.uplinks(TIERS, 4, 4)
    assert tiers is not None and tiers.groups == (0, 0, 1, 1) and tiers.slower == 1.0
    assert volume(case("all-reduce"), "ring", tiers) == pytest.approx(1.5)
    assert volume(case("all-reduce"), "halving-doubling", tiers) == pytest.approx(2.5)
    assert volume(case("all-reduce", groups="0,2/1,3"), "ring", tiers) == pytest.approx(2.0)
    assert volume(case("all-reduce", groups="0,1/2,3"), "ring", tiers) == pytest.approx(1.0)


def test_auto_knows_uplinks_and_says_so() -> None:
    link = fit.Fit(1e-6, 8 / GBIT, 1.0)
    one, tiers = case("all-reduce"), expected.uplinks(TIERS, 4, 4, 8 / GBIT)
    found = choice.choose(one, choice.candidates(one), link, tiers)
    assert found.seconds["ring"] < found.seconds["halving-doubling"]
    assert found.why.endswith("nodes in order behind 2 shared uplinks")
    flat = choice.choose(one, choice.candidates(one), link)
    assert "uplinks" not in flat.why and flat.seconds["halving-doubling"] < flat.seconds["ring"]


def test_a_flat_fabric_has_no_uplinks_and_ranks_of_a_node_share_its_place() -> None:
    assert expected.uplinks(None, 4, 4) is expected.uplinks(LinkSpec(rate=GBIT), 4, 4) is None
    two = expected.uplinks(TIERS, 8, 4)
    assert two is not None and two.groups == (0, 0, 0, 0, 1, 1, 1, 1)
