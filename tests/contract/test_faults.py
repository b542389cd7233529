"""What every file of faults/ must be, by existing."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import Any, get_args

import pytest

from orchestrator.core.spec import planned_acts
from orchestrator.faults import pause_node
from orchestrator.model import codec
from orchestrator.model.act import (
    ENDING_SIGNALS,
    OF_HOSTS,
    SAFETY_ORDER,
    Act,
    HostFacts,
    Primitive,
    PrimitiveKind,
    Target,
    objection,
)
from orchestrator.model.bed import HostSpec
from orchestrator.model.plugin import Plugin
from orchestrator.node.keeper import host_primitives, node_primitives
from orchestrator.providers import event_reader

from ..unit.catalogue import CATALOGUE

FAULTS = [pytest.param(plugin, id=name) for name, plugin in CATALOGUE.faults.items()]
#: All that a provider, or a variable of the inventory, offers.
CAPABILITIES = sorted(
    event_reader.CAPABILITIES
    | set(planned_acts._CAPABILITY_VARIABLES)
    | {"own-link"}
)  # fmt: skip
SPEC = HostSpec(
    name="h",
    connection="ssh",
    address="198.18.0.2",
    power={"off": ("pdu", "off"), "on": ("pdu", "on")},
    switch_port={"down": ("switch", "down"), "up": ("switch", "up")},
    engine_control={"stop": ("service", "stop"), "start": ("service", "start")},
    ssh_control={"stop": ("console", "stop"), "start": ("console", "start")},
)
TARGETS = (Target(node="n2", rank=2), Target(node="n4", rank=None, role="spare"))
#: After these acts an agent does not answer, so the keeper must hold the lease.
SILENCING = ("power", "pause")


def hosts() -> list[HostFacts]:
    """Hosts of both kinds with none, any single, any two, and all of the capabilities."""
    sizes = (0, 1, 2, len(CAPABILITIES))
    sets = [names for size in sizes for names in itertools.combinations(CAPABILITIES, size)]
    return [
        HostFacts(name="h", provider=provider, capabilities=frozenset(names), spec=spec)
        for provider, spec in (("process", None), ("docker", SPEC))
        for names in sets
    ]


def acts(plugin: Plugin) -> list[Act]:
    params = plugin.module.Params()
    return [plugin.module.plan(params, target, host) for target in TARGETS for host in hosts()]


def leaves_nothing(primitive: Primitive) -> bool:
    """A process that was ended needs no healing: the next gang has its own. The same is true of what happens inside of it."""
    return primitive.kind == "inside" or (primitive.kind == "signal" and primitive.args["signal"] in ENDING_SIGNALS)


def test_each_kind_of_primitive_is_implemented() -> None:
    hosts = {kind for kind, _ in host_primitives._OBSERVE}
    assert node_primitives._APPLY.keys() == node_primitives._OBSERVE.keys()
    assert set(get_args(PrimitiveKind)) == node_primitives._APPLY.keys() | hosts


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
        assert bool(act.heal) == bool(act.verify_heal), "healing and its proof belong together"
        assert act.heal or all(map(leaves_nothing, act.inject)), "nothing is undone"
        assert act.safety == plugin.module.SAFETY
        assert act.lease_s > (act.heal_after_s or 0.0), "the lease would heal before its time"
        used = (*act.inject, *act.verify, *act.heal, *act.verify_heal)
        assert {primitive.kind for primitive in used} <= set(get_args(PrimitiveKind))
        hosts = [item for item in used if host_primitives.is_of_host(item)]
        assert {(item.kind, item.args.get("of", "")) for item in hosts} <= host_primitives._OBSERVE.keys()
        assert set(act.needs) <= set(CAPABILITIES)


@pytest.mark.parametrize("plugin", FAULTS)
def test_every_act_changes_something(plugin: Plugin) -> None:
    assert {objection(act) for act in acts(plugin)} == {""}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"verify": ()}, "verify is empty"),
        ({"inject": ()}, "inject is empty"),
        ({"heal": "inject"}, "inject equals `heal`"),
        ({"verify_heal": "verify"}, "verify equals verify_heal"),
    ],
)
def test_an_act_that_cannot_prove_anything_is_named(change: dict[str, Any], problem: str) -> None:
    act = pause_node.plan(pause_node.Params(), TARGETS[0], hosts()[0])
    fields = {name: getattr(act, value) if isinstance(value, str) else value for name, value in change.items()}
    assert problem in objection(dataclasses.replace(act, **fields))


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


OF_A_HOST = [name for name in CATALOGUE.faults if name in ("stop-engine", "cut-link", "power-off", "stop-ssh")]


@pytest.mark.parametrize("name", OF_A_HOST)
def test_what_takes_a_host_away_says_so_and_is_done_by_the_argv_of_the_inventory(name: str) -> None:
    fault = CATALOGUE.faults[name].module
    act = fault.plan(
        fault.Params(), TARGETS[0], HostFacts(name="h", provider="docker", capabilities=frozenset(), spec=SPEC)
    )
    assert act.of_host
    assert act.outside == (name != "stop-engine"), "the host agent of a host whose engine is stopped lives on"
    assert fault.SAFETY == "node"
    assert set(act.disables) & set(OF_HOSTS)
    assert all(primitive.args["run"] for primitive in (*act.inject, *act.heal) if "of" in primitive.args)


def test_the_link_goes_before_the_power_so_that_only_silence_can_tell() -> None:
    fault = CATALOGUE.faults["power-off"].module
    host = HostFacts(name="h", provider="docker", capabilities=frozenset({"power-off", "cut-link"}), spec=SPEC)
    assert [primitive.kind for primitive in fault.plan(fault.Params(), TARGETS[0], host).inject] == ["link", "power"]


def test_a_container_is_killed_by_the_engine_of_its_host_and_no_link_is_cut() -> None:
    crash = CATALOGUE.faults["crash-node"].module
    host = HostFacts(name="h", provider="docker", capabilities=frozenset(CAPABILITIES) - {"own-link"}, spec=SPEC)
    act = crash.plan(crash.Params(), TARGETS[0], host)
    assert [primitive.kind for primitive in act.inject] == ["power"]
    assert not act.outside


def test_where_a_node_has_a_link_of_its_own_it_is_cut_before_the_node_is_killed_and_comes_back_first() -> None:
    crash = CATALOGUE.faults["crash-node"].module
    host = HostFacts(name="h", provider="fabric", capabilities=frozenset({"kill", "own-link"}))
    act = crash.plan(crash.Params(), TARGETS[0], host)
    assert [primitive.kind for primitive in act.inject] == ["link", "power"]
    assert [primitive.kind for primitive in act.heal] == ["link", "power"]
    assert [primitive.kind for primitive in act.verify] == ["link", "power"], "the link's part is verified too"
    assert [primitive.kind for primitive in act.verify_heal] == ["link", "power"]


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


@pytest.mark.parametrize(
    ("wrong", "problem"), [({"cpu_percent": 0}, "cpu_percent: must be >= 1"), ({"for_s": -1.0}, "for_s")]
)
def test_a_slow_node_without_any_time_is_rejected_by_name(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CATALOGUE.faults["slow-node"].module.Params(**wrong)
