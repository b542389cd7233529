"""The cost of a case by playing its schedule, beside the formulas; and what auto makes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.collectives.rank import algorithm_choice, expected_cost, link_fit
from orchestrator.core.engine import engine, gang_commands
from orchestrator.model.bed import LinkSpec
from orchestrator.model.gang import GangSpec
from orchestrator.model.plan import Plan
from orchestrator.model.schedule import OPERATIONS
from orchestrator.rank.exchange import cases

from .. import beds, test_plan

GBIT = 10**9
TIERS = LinkSpec(rate=GBIT, groups=2, uplink=GBIT)
IN_ORDER = (0, 0, 1, 1)


def case(operation: str, world: int = 4, **more: Any) -> cases.Case:
    return cases.cases([cases.Item(operation=operation, bytes=4 * 27720, **more)], world)[0]


def volume(case_: cases.Case, name: str, tiers: expected_cost.Uplinks | None = None) -> float:
    algorithm = algorithm_choice.find(name)
    assert algorithm is not None
    return expected_cost.cost(case_, algorithm, tiers).volume


@pytest.mark.parametrize(("name", "waits"), [("pairwise", 0.0), ("direct", 0.05)])
def test_uneven_shares_cost_what_the_busiest_port_moves(name: str, waits: float) -> None:
    """``waits``: direct sends in turn, so the busiest port waits for a sender that serves another first."""
    assert volume(case("all-to-all", shares=(0.1, 0.1, 0.1, 0.7)), name) == pytest.approx(2.1 + waits, rel=1e-3)
    assert volume(case("all-to-all", shares=(0.25,) * 4), name) == pytest.approx(0.75)


def test_equal_shares_by_the_schedule_cost_what_the_formula_says() -> None:
    """Shares that hardly differ: the schedule is followed, and agrees."""
    for algorithm in algorithm_choice.able("all-to-all", 4):
        even, nearly = (
            volume(case("all-to-all", shares=shares), algorithm.name) for shares in ((), (0.25, 0.25, 0.2501, 0.2499))
        )
        assert nearly == pytest.approx(even, rel=2e-3), algorithm.name


def test_uplinks_as_wide_as_all_their_ports_change_nothing() -> None:
    wide = expected_cost.uplinks(LinkSpec(rate=GBIT, groups=2, uplink=1000 * GBIT), (0, 0, 0, 0, 1, 1, 1, 1))
    for operation in OPERATIONS:
        for entry in algorithm_choice.able(operation, 8):
            algorithm = entry.cost(operation, 8)
            assert expected_cost.cost(case(operation, 8), entry, wide).volume == pytest.approx(
                algorithm.volume, rel=1e-3, abs=1e-3
            ), entry.name


def test_what_crosses_a_shared_uplink_at_once_takes_longer() -> None:
    tiers = expected_cost.uplinks(TIERS, IN_ORDER)
    assert tiers is not None and tiers.groups == (0, 0, 1, 1) and tiers.slower == 1.0
    assert volume(case("all-reduce"), "ring", tiers) == pytest.approx(1.5)
    assert volume(case("all-reduce"), "halving-doubling", tiers) == pytest.approx(2.5)
    assert volume(case("all-reduce", groups="0,2/1,3"), "ring", tiers) == pytest.approx(2.0)
    assert volume(case("all-reduce", groups="0,1/2,3"), "ring", tiers) == pytest.approx(1.0)


def test_auto_knows_uplinks_and_says_so() -> None:
    link = link_fit.Fit(1e-6, 8 / GBIT)
    case_, tiers = case("all-reduce"), expected_cost.uplinks(TIERS, IN_ORDER, 8 / GBIT)
    result = algorithm_choice.choose(case_, algorithm_choice.candidates(case_), link, tiers)
    assert result.seconds["ring"] < result.seconds["halving-doubling"]
    assert result.why.endswith("; ranks 0,1 / 2,3 behind shared uplinks")
    flat = algorithm_choice.choose(case_, algorithm_choice.candidates(case_), link)
    assert "uplinks" not in flat.why and flat.seconds["halving-doubling"] < flat.seconds["ring"]


def test_the_model_goes_by_where_the_ranks_are_plugged_in_and_not_by_their_order() -> None:
    """A ring whose neighbours are behind different uplinks crosses them at every step, with two ranks at once."""
    alternate = expected_cost.uplinks(TIERS, (0, 1, 0, 1))
    assert volume(case("all-reduce"), "ring", alternate) == pytest.approx(3.0)
    assert volume(case("all-reduce"), "halving-doubling", alternate) == pytest.approx(2.0)
    one_leaf_of_three = expected_cost.uplinks(TIERS, (0, 0, 0, 1))
    assert volume(case("all-reduce"), "ring", one_leaf_of_three) == pytest.approx(1.5)
    assert volume(case("all-reduce", groups="0,1/2,3"), "ring", alternate) == pytest.approx(2.0)
    assert volume(case("all-reduce", groups="0,2/1,3"), "ring", alternate) == pytest.approx(1.0)


def test_auto_chooses_otherwise_where_the_ranks_lie_otherwise() -> None:
    link, entry = link_fit.Fit(1e-6, 8 / GBIT), case("all-reduce")
    among = [result for result in algorithm_choice.candidates(entry) if result.name in ("ring", "halving-doubling")]
    chosen = {
        leaves: algorithm_choice.choose(entry, among, link, expected_cost.uplinks(TIERS, leaves))
        for leaves in (IN_ORDER, (0, 1, 0, 1))
    }
    assert [result.name for result in chosen.values()] == ["ring", "halving-doubling"]
    assert "; ranks 0,2 / 1,3 behind shared uplinks" in chosen[0, 1, 0, 1].why


def test_where_nothing_crosses_an_uplink_the_fabric_is_flat() -> None:
    assert expected_cost.uplinks(None, IN_ORDER) is expected_cost.uplinks(LinkSpec(rate=GBIT), IN_ORDER) is None
    assert expected_cost.uplinks(TIERS, (0, 0)) is expected_cost.uplinks(TIERS, ()) is None


def test_how_much_slower_an_uplink_is_follows_from_both_rates_and_else_from_the_probe() -> None:
    half = expected_cost.uplinks(LinkSpec(rate=GBIT, groups=2, uplink=GBIT // 2), IN_ORDER, 8 / (0.95 * GBIT))
    assert half is not None and half.slower == 2.0, "what frames cost is the same on both"
    bare = expected_cost.uplinks(LinkSpec(groups=2, uplink=GBIT), IN_ORDER, 8 / (10 * GBIT))
    assert bare is not None and bare.slower == pytest.approx(10.0)
    unprobed = expected_cost.uplinks(LinkSpec(groups=2, uplink=GBIT), IN_ORDER)
    assert unprobed is not None and unprobed.slower == 0.0


FABRIC = """all:
  hosts: {localhost: {ansible_connection: local}}
  vars: {ccbed_nodes: 4, ccbed_spares: 1, ccbed_isolation: namespace, ccbed_link: {rate: 1gbit, groups: 2, uplink: 1gbit}}
"""


def gang_spec(plan: Plan, *slots: str) -> GangSpec:
    """The spec that the first slot receives when these nodes are the gang."""
    trial = test_plan.trial(f"world: {{nodes: {len(slots)}, ranks_per_node: 2}}")
    made, _ = engine.begin(trial, plan)
    return gang_commands._gang_spec(trial, dataclasses.replace(made, slots=slots), slots[0])


def test_ranks_are_told_which_switch_each_of_them_is_plugged_into() -> None:
    bed = beds.local(FABRIC)
    made = test_plan.planned(test_plan.trial("world: {nodes: 4}"), bed)
    assert {name: node.leaf for name, node in made.nodes.items()} == {"n0": 0, "n1": 0, "n2": 1, "n3": 1, "n4": 0}
    assert gang_spec(made, "n0", "n1", "n2", "n3").leaves == (0, 0, 0, 0, 1, 1, 1, 1)
    assert gang_spec(made, "n0", "n1", "n4", "n3").leaves == (0, 0, 0, 0, 0, 0, 1, 1), "the spare is where it is"
    assert gang_spec(made, "n0", "n1").leaves == (0, 0, 0, 0), "a trial of half of the bed shares no uplink"
    assert gang_spec(test_plan.planned(test_plan.trial()), "n0", "n1").leaves == ()
