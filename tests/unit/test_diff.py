"""What `up` would do, with a reason for each node."""

from __future__ import annotations

import dataclasses

from orchestrator.core.bed.diff import ADOPTED, diff
from orchestrator.model.bed import BedStatus, NodeStatus

from . import beds


def test_a_bed_as_it_is_wanted_needs_nothing() -> None:
    bed = beds.local()
    assert diff(bed, beds.up(bed)).empty


def test_a_busy_node_is_as_wanted_too() -> None:
    bed = beds.local()
    assert diff(bed, beds.up(bed, n1="busy", n2="starting")).empty


def test_nothing_there_means_everything_is_created() -> None:
    bed = beds.local()
    plan = diff(bed, BedStatus(name="local"))
    assert [(change.node, change.reason) for change in plan.of("create")] == [(f"n{i}", "not there") for i in range(5)]
    assert plan.keeper is not None
    assert plan.keeper.action == "create"


def test_a_dead_node_is_created_again_and_a_stopped_one_replaced() -> None:
    bed = beds.local()
    plan = diff(bed, beds.up(bed, n2="dead", n3="paused"))
    assert [(change.action, change.node) for change in plan.changes if change.action != "keep"] == [
        ("create", "n2"), ("replace", "n3"),
    ]  # fmt: skip
    assert plan.keeper is None


def test_a_changed_node_is_replaced_and_the_reason_names_what_changed() -> None:
    before = beds.local()
    bed = beds.local(beds.LOCAL.replace("local}", "local, ccbed_address: 127.0.0.2}"))
    changes = diff(bed, beds.up(before), before).of("replace")
    assert len(changes) == 5
    assert changes[0].reason.startswith("address 127.0.0.1 -> 127.0.0.2 (spec ")


def test_another_agent_replaces_keeper_and_nodes() -> None:
    bed = beds.local(agent="b" * 64)
    plan = diff(bed, beds.up(beds.local()))
    assert plan.keeper is not None
    assert (plan.keeper.action, plan.keeper.reason) == ("replace", "agent changed aaaaaa -> bbbbbb")
    assert {change.reason for change in plan.of("replace")} == {plan.keeper.reason}


def test_nodes_whose_keeper_is_gone_are_kept_and_adopted_by_a_new_one() -> None:
    bed = beds.local()
    plan = diff(bed, dataclasses.replace(beds.up(bed), keeper_pid=0, keeper_hash=""))
    assert [(change.action, change.reason) for change in plan.changes] == [("keep", ADOPTED)] * 5
    assert plan.keeper is not None
    assert plan.keeper.action == "create"
    assert not plan.empty


def test_a_node_that_a_new_keeper_cannot_adopt_is_replaced_with_the_reason() -> None:
    bed = beds.local()
    status = dataclasses.replace(beds.up(bed, n1="dead", n2="paused"), keeper_pid=0, keeper_hash="")
    odd = dataclasses.replace(status.node("n3"), spec_hash="other")
    nodes = tuple(odd if node.name == "n3" else node for node in status.nodes)
    plan = diff(bed, dataclasses.replace(status, nodes=nodes))
    assert [(change.node, change.reason.partition(" ")[0]) for change in plan.of("replace")] == [
        ("n2", "paused"), ("n3", "spec"),
    ]  # fmt: skip
    assert [change.node for change in plan.of("create")] == ["n1"]
    assert [change.node for change in plan.of("keep")] == ["n0", "n4"]


def test_a_node_that_is_no_longer_wanted_is_removed_unless_it_is_gone() -> None:
    bed = beds.local()
    more = (NodeStatus(name="n5", state="warm"), NodeStatus(name="n6", state="absent"))
    status = dataclasses.replace(beds.up(bed), nodes=(*beds.up(bed).nodes, *more))
    assert [change.node for change in diff(bed, status).of("remove")] == ["n5"]
