"""Room on hosts: what an inventory allows beyond its nodes, which host may replace a lost node, and why another may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cli.render import bed_view
from orchestrator.core.bed import diff, selection
from orchestrator.core.bed.nodes_from_inventory import assemble_bed
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec, BedStatus, HostSpec, HostStatus
from orchestrator.model.errors import UsageError
from orchestrator.model.event import History
from orchestrator.model.plan import Gap, Placement, Plan
from orchestrator.model.trial import Trial
from orchestrator.views import order

from ..sim import test_replace as simulated
from ..sim import world
from ..sim.test_hosts_judged import judged
from . import beds
from .test_plan import planned, trial

THREE = """all:
  vars: {ansible_connection: local, ccbed_bed: rooms}
  hosts:
    h1: {ccbed_nodes: 1, ccbed_max_nodes: 2}
    h2: {ccbed_nodes: 1}
    h3: {ccbed_nodes: 2, ccbed_max_nodes: 3}
"""
REPLACE = "world: {nodes: 3}\nrecovery: {policy: replace}"


def bed(text: str = THREE, earlier: BedSpec | None = None) -> BedSpec:
    inventory = parse_inventory.parse(text, "rooms.yml")
    return assemble_bed(inventory, agent="a" * 64, state="/state", home="/h", recorded=lambda name: earlier)


def made(of: Trial, spec: BedSpec | None = None, status: BedStatus | None = None, **more: object) -> Plan:
    spec = spec or bed()
    capabilities = {host: frozenset({"kill"}) for host in ("h1", "h2", "h3")}
    return planned(of, spec, status or beds.up(spec), capabilities=capabilities, **more)


def test_a_host_has_room_for_what_it_may_hold_beyond_its_nodes() -> None:
    spec = bed()
    assert [(node.name, node.host) for node in spec.nodes] == [("n0", "h1"), ("n1", "h2"), ("n2", "h3"), ("n3", "h3")]
    assert [(node.name, node.host, node.role) for node in spec.replacements] == [
        ("n4", "h1", "replacement"), ("n5", "h3", "replacement"),
    ]  # fmt: skip


def test_a_drained_host_is_not_listed_as_room() -> None:
    assert "".join(bed_view.room(bed(), ())).endswith("h1 (1) h3 (1)")
    assert "".join(bed_view.room(bed(), ("h1",))).endswith(": h3 (1)")
    assert list(bed_view.room(bed(), ("h1", "h3"))) == []


def test_a_bed_without_the_variable_has_no_room_and_the_same_nodes() -> None:
    text = THREE.replace(", ccbed_max_nodes: 2", "").replace(", ccbed_max_nodes: 3", "")
    assert bed(text).replacements == ()
    assert [node.hash for node in bed(text).nodes] == [node.hash for node in bed().nodes]


def test_room_keeps_its_name_when_another_host_gets_some() -> None:
    more = THREE.replace("h2: {ccbed_nodes: 1}", "h2: {ccbed_nodes: 1, ccbed_max_nodes: 2}")
    names = {node.host: node.name for node in bed(more, earlier=bed()).replacements}
    assert (names["h1"], names["h3"]) == ("n4", "n5")


def test_a_host_without_a_node_of_its_own_may_have_room_and_be_drained() -> None:
    spec = bed(THREE.replace("h2: {ccbed_nodes: 1}", "h2: {ccbed_nodes: 0, ccbed_max_nodes: 1}"))
    assert set(selection.host_names(spec)) == {"h1", "h2", "h3"}
    assert made(trial(REPLACE), spec).hosts == {"h1": "", "h2": "", "h3": ""}


def test_gpus_are_divided_among_nodes_and_room() -> None:
    text = THREE.replace("ccbed_max_nodes: 2", "ccbed_max_nodes: 2, ccbed_gpus: [0, 1, 2, 3]")
    assert [node.env.get("CUDA_VISIBLE_DEVICES") for node in bed(text).all_nodes if node.host == "h1"] == ["0,1", "2,3"]


def test_fewer_than_its_nodes_is_one_error_with_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        bed(THREE.replace("ccbed_max_nodes: 3", "ccbed_max_nodes: 1"))
    (problem,) = caught.value.problems
    assert "ccbed_max_nodes: must be at least 2, the nodes, spares and standbys of h3 (got 1)" in problem


def test_unused_nodes_that_are_warm_come_first_and_unstarted_ones_have_no_incarnation() -> None:
    plan = made(trial(REPLACE))
    assert plan.replacements == ("n3", "n4", "n5")
    assert (plan.nodes["n3"].incarnation, plan.nodes["n4"].incarnation, plan.nodes["n4"].role) == (
        "i-n3",
        "",
        "replacement",
    )
    assert plan.hosts == {"h1": "", "h2": "", "h3": ""}
    assert set(made(trial(REPLACE), status=beds.up(bed(), n3="dead")).replacements) == {"n4", "n5"}


def test_another_policy_plans_no_replacement() -> None:
    plan = made(trial("world: {nodes: 3}\nrecovery: {policy: restart}"))
    assert (plan.replacements, plan.hosts, set(plan.nodes)) == ((), {}, {"n0", "n1", "n2"})


def test_hosts_that_must_get_no_node_are_named_with_the_reason() -> None:
    plan = made(
        trial("world: {nodes: 2}\nrecovery: {policy: replace, replace_wait: 1s}"),
        placement=Placement(quarantined={"n2": "is set aside since night-2: slow"}),
        gaps=(Gap(nodes=frozenset({"n4"}), other_nodes=None, reason="h1 cannot write there"),),
    )
    assert plan.hosts["h3"] == "has n2, which is set aside since night-2: slow"
    assert plan.hosts["h1"] == "does not share /state/beds/rooms/shared: h1 cannot write there"
    assert plan.replacements == ()


def test_a_host_without_a_keeper_or_that_was_left_out_gets_none() -> None:
    spec = replace(bed(), hosts=(HostSpec(name="h1"), HostSpec(name="h2")))
    status = replace(beds.up(spec), hosts=(HostStatus(name="h1"), HostStatus(name="h2", keeper_pid=7)))
    plan = made(trial("world: {nodes: 2}\nrecovery: {policy: replace, replace_wait: 1s}"), spec, status)
    assert plan.hosts == {
        "h1": "had no host agent when the run began",
        "h2": "",
        "h3": "was drained when the run began",
    }
    assert plan.replacements == ()


def test_replace_without_room_and_without_a_wait_is_refused_before_the_run() -> None:
    text = THREE.replace(", ccbed_max_nodes: 2", "").replace("ccbed_nodes: 2, ccbed_max_nodes: 3", "ccbed_nodes: 1")
    with pytest.raises(
        UsageError, match="recovery replace needs a host with room; bed rooms has none: h1 is full; h2 is full"
    ):
        made(trial(REPLACE), bed(text))
    assert made(trial(f"{REPLACE[:-1]}, replace_wait: 5m}}"), bed(text)).hosts == {"h1": "", "h2": "", "h3": ""}


def test_a_wait_without_the_policy_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"recovery\.replace_wait: needs the policy replace"):
        trial("recovery: {policy: restart, replace_wait: 5m}")


def test_a_replacement_that_lives_is_left_alone_during_a_run_and_removed_by_the_next_up() -> None:
    spec = bed()
    living = beds.up(replace(spec, nodes=(*spec.nodes, spec.replacements[0])))
    during, after = diff.diff(spec, replace(living, open_run="r")), diff.diff(spec, living)
    assert during.empty
    assert [(change.action, change.node) for change in after.changes if change.action != "keep"] == [("remove", "n4")]


def test_a_replacement_that_no_decision_chose_fails_membership() -> None:
    made_trial, fake = simulated.trial(world.crash(2)), simulated.bed()
    book = simulated.run(made_trial, fake, simulated.plan(made_trial))
    assert judged(made_trial, book)["membership"].outcome == "pass"
    book.events = [
        replace(event, value={**event.value, "hosts": {}}) if event.f == "recovery.decided" else event
        for event in book.events
    ]
    verdict = judged(made_trial, book)["membership"]
    assert (verdict.outcome, "n4 was started again although it was not lost" in verdict.text) == ("fail", True)


def test_hosts_of_one_machine_have_one_keeper_whose_events_are_counted_together() -> None:
    made_trial, fake = simulated.trial(world.crash(2)), simulated.bed()
    book = simulated.run(made_trial, fake, simulated.plan(made_trial))
    begin = book.events[0]
    local = replace(begin, value={**begin.value, "cursors": {"keeper/events.jsonl": 0}})
    assert order.disorder(History(tuple(book.events))) == ()
    assert order.disorder(History((local, *book.events[1:]))), "the fake hosts have a host agent each"


@pytest.mark.parametrize(("is_shown", "outcome"), [(True, "pass"), (False, "unknown")])
def test_that_a_replacement_ended_must_be_shown(is_shown: bool, outcome: str) -> None:
    made_trial, fake = simulated.trial(world.crash(2)), simulated.bed()
    book = simulated.run(made_trial, fake, simulated.plan(made_trial))
    kinds = ("node.kill", "node.exit", "node.ended")
    if not is_shown:
        book.events = [event for event in book.events if not (event.node == "n4" and event.f in kinds)]
    assert judged(made_trial, book)["no-orphans"].outcome == outcome
