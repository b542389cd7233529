"""What every file of faults/ must be, by existing."""

from __future__ import annotations

import inspect
import itertools
from typing import Any, get_args

import pytest

from orchestrator.faults import pause_node
from orchestrator.model import codec
from orchestrator.model.act import SAFETY_ORDER, Act, HostFacts, PrimitiveKind, Target
from orchestrator.model.plugin import Plugin

from ..unit.catalogue import CATALOGUE

FAULTS = [pytest.param(plugin, id=name) for name, plugin in CATALOGUE.faults.items()]
CAPABILITIES = ("kill", "pause", "stop", "power-off", "cut-link", "shape", "gpu")
TARGETS = (Target(node="n2", rank=2), Target(node="n4", rank=None, role="spare"))
#: Acts after which an agent cannot answer, so that somebody else must hold the lease.
SILENCING = ("power", "pause")


def hosts() -> list[HostFacts]:
    every = itertools.chain.from_iterable(itertools.combinations(CAPABILITIES, n) for n in range(len(CAPABILITIES) + 1))
    return [HostFacts(name="h", provider="process", capabilities=frozenset(some)) for some in every]


def acts(plugin: Plugin) -> list[Act]:
    params = plugin.module.Params()
    return [plugin.module.plan(params, target, host) for target in TARGETS for host in hosts()]


def test_there_are_faults() -> None:
    assert {"crash-node", "pause-node"} <= set(CATALOGUE.faults)


@pytest.mark.parametrize("plugin", FAULTS)
def test_the_docstring_begins_with_a_sentence_for_the_catalogue(plugin: Plugin) -> None:
    assert plugin.summary.endswith(".")
    assert len(plugin.summary) <= 140


@pytest.mark.parametrize("plugin", FAULTS)
def test_params_are_a_frozen_dataclass_with_defaults_and_its_safety_is_named(plugin: Plugin) -> None:
    params: Any = plugin.module.Params
    assert params.__dataclass_params__.frozen
    params()
    assert plugin.module.SAFETY in SAFETY_ORDER
    assert list(inspect.signature(plugin.module.plan).parameters) == ["params", "target", "host"]


@pytest.mark.parametrize("plugin", FAULTS)
def test_every_act_can_be_proved_and_undone(plugin: Plugin) -> None:
    for act in acts(plugin):
        assert act.inject, "nothing is injected"
        assert act.verify, "nothing is proved"
        assert act.heal, "nothing is undone"
        assert act.verify_heal, "nothing shows that it was undone"
        assert act.safety == plugin.module.SAFETY
        assert act.lease_s > (act.heal_after_s or 0.0), "the lease would heal before its time"
        used = (*act.inject, *act.verify, *act.heal, *act.verify_heal)
        assert {primitive.kind for primitive in used} <= set(get_args(PrimitiveKind))
        assert set(act.needs) <= set(CAPABILITIES)


@pytest.mark.parametrize("plugin", FAULTS)
def test_a_fault_that_silences_the_agent_says_so(plugin: Plugin) -> None:
    for act in acts(plugin):
        if any(primitive.kind in SILENCING for primitive in act.inject):
            assert "agent" in act.disables


@pytest.mark.parametrize("plugin", FAULTS)
def test_an_act_is_pure_data_and_the_same_each_time(plugin: Plugin) -> None:
    assert acts(plugin) == acts(plugin)
    for act in acts(plugin):
        assert codec.build(Act, codec.plain(act)) == act


def test_where_the_bed_owns_the_link_it_is_cut_before_the_node_is_killed_and_comes_back_first() -> None:
    crash = CATALOGUE.faults["crash-node"].module
    host = HostFacts(name="h", provider="fabric", capabilities=frozenset({"kill", "cut-link"}))
    act = crash.plan(crash.Params(), TARGETS[0], host)
    assert [primitive.kind for primitive in act.inject] == ["link", "power"]
    assert [primitive.kind for primitive in act.heal] == ["link", "power"]


def test_a_pause_is_healed_after_its_time_or_when_the_run_ends() -> None:
    host = hosts()[0]
    timed = pause_node.plan(pause_node.Params(for_s=300.0), TARGETS[0], host)
    assert timed.heal_after_s == 300.0
    assert timed.lease_s > 300.0
    assert pause_node.plan(pause_node.Params(), TARGETS[0], host).heal_after_s is None


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pause_of_no_or_endless_time_is_refused_by_name(wrong: float) -> None:
    with pytest.raises(ValueError, match="for_s: must be > 0"):
        pause_node.Params(for_s=wrong)
