"""Many nodes on few hosts: started in waves, within times that grow with their number; those that are ready are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.bed.diff import diff
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec, BedStatus, NodeState, NodeStatus
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.model.event import Command, Event
from orchestrator.model.provider import Cursors
from orchestrator.providers import apply, bed_commands

from .fake_bed import FakeProvider


def bed(nodes: int, hosts: int = 3, more: str = "") -> BedSpec:
    names = ", ".join(f"h{number}: {{ansible_host: 10.0.0.{number}}}" for number in range(1, hosts + 1))
    text = f"all: {{hosts: {{{names}}}, vars: {{ccbed_provider: docker, ccbed_nodes: {nodes}{more}}}}}"
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "lab.yml"), agent="a" * 64, state="/s", home="/h"
    )


class Slow(FakeProvider):
    """Its hosts start so many nodes in the time that one has; of more than that at once the last are not ready in time."""

    most = apply.AT_ONCE

    def __init__(self, wanted: BedSpec, broken: Sequence[str] = ()) -> None:
        super().__init__(broken=tuple(broken))
        self.wanted = wanted
        self.waves: list[dict[str, int]] = [{}]
        self.deadlines: dict[str, float] = {}
        self.dead: set[str] = set()

    def perform(self, command: Command) -> None:
        host = self.wanted.node(str(command.node)).host
        wave = self.waves[-1]
        wave[host] = wave.get(host, 0) + 1
        self.deadlines[str(command.node)] = command.deadline_s
        if host not in self.dead and wave[host] <= self.most:
            super().perform(command)

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        result = super().poll(cursors, timeout_s)
        if result[0]:
            self.waves.append({})
        return result

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        gone = bed.node(node).host in self.dead
        return NodeStatus(name=node, state="unreachable" if gone else "starting", reason="no route")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed_commands, "_CHECK_S", 0.0)


def up(provider: Slow, wanted: BedSpec, status: BedStatus | None = None) -> Any:
    result = status or BedStatus(name=wanted.name, detached=True)
    return apply.apply(provider, wanted, diff(wanted, result), token="t")


def test_twenty_four_nodes_on_three_slow_hosts_come_up() -> None:
    wanted = bed(8)
    provider = Slow(wanted)
    up(provider, wanted)
    assert len(provider.nodes) == 24
    assert provider.waves[:-1] == [{"h1": 4, "h2": 4, "h3": 4}] * 2


def test_nodes_that_are_forked_start_in_larger_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "all: {hosts: {localhost: {ansible_connection: local, ccbed_nodes: 100}}}"
    inventory = parse_inventory.parse(text, "local.yml")
    wanted = nodes_from_inventory.assemble_bed(inventory, agent="a" * 64, state="/s", home="/h")
    provider = Slow(wanted)
    monkeypatch.setattr(provider, "most", 100)
    up(provider, wanted)
    assert provider.waves[:-1] == [{"localhost": 64}, {"localhost": 36}]
    assert [provider.deadlines[name] for name in ("n0", "n99")] == [120.0, 67.5]


def test_the_hosts_of_this_test_do_not_start_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(apply, "AT_ONCE", 8)
    wanted = dataclasses.replace(bed(8), start_timeout_s=0.01)
    with pytest.raises(InfrastructureError, match=r"no response to node\.apply"):
        up(Slow(wanted), wanted)


def test_the_time_of_a_node_grows_with_those_that_start_beside_it_and_can_be_set() -> None:
    alone, many, set_ = bed(1), bed(8), bed(8, more=", ccbed_start_timeout: 5m")
    for wanted, limit_s in ((alone, 60.0), (many, 120.0), (set_, 600.0)):
        provider = Slow(wanted)
        up(provider, wanted)
        assert set(provider.deadlines.values()) == {limit_s}


def test_nodes_that_are_ready_are_kept_and_a_second_up_starts_only_the_others() -> None:
    wanted = bed(8)
    provider = Slow(wanted, broken=("n1", "n9"))
    with pytest.raises(InfrastructureError) as refused:
        up(provider, wanted)
    assert len(provider.nodes) == 22, "what comes after a failure is started as well"
    assert refused.value.problems == ("node n1: no memory left", "node n9: no memory left")
    assert "nodes that are ready are kept" in refused.value.hint
    second = Slow(wanted)
    second.nodes = dict(provider.nodes)
    up(
        second,
        wanted,
        BedStatus(
            name="lab", nodes=tuple(provider.nodes.values()), keeper_pid=1, keeper_hash=wanted.agent, detached=True
        ),
    )
    assert sorted(second.deadlines) == ["n1", "n9"]


def test_a_host_that_is_lost_is_not_waited_for_in_later_waves() -> None:
    wanted = bed(8)
    provider = Slow(wanted)
    provider.dead = {"h2"}
    with pytest.raises(InfrastructureError) as refused:
        up(provider, wanted)
    assert len(provider.nodes) == 16
    assert len(refused.value.problems) == 8
    assert all("its host h2 was lost: no route" in problem for problem in refused.value.problems)
    assert len([name for name in provider.deadlines if wanted.node(name).host == "h2"]) == 4


def test_up_waits_for_nodes_that_another_up_has_started() -> None:
    wanted = bed(1)
    states: list[Mapping[str, NodeState]] = [{"n1": "starting"}, {}]

    def status(result: Mapping[str, NodeState]) -> BedStatus:
        nodes = (NodeStatus(name=node.name, state=result.get(node.name, "warm")) for node in wanted.nodes)
        return BedStatus(name="lab", nodes=tuple(nodes))

    class Observed(FakeProvider):
        def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
            return status(states.pop(0))

    result = apply.settle(Observed(), wanted, status({"n1": "starting"}), sleep=lambda seconds: None)
    assert ({node.state for node in result.nodes}, states) == ({"warm"}, [])
    late = dataclasses.replace(wanted, start_timeout_s=0.0)
    assert apply.settle(Observed(), late, status({"n1": "starting"})).node("n1").state == "starting"


@pytest.mark.parametrize("value", ["0", "-1", "2h", "soon", "true", "nan"])
def test_a_time_to_start_that_is_none_is_rejected(value: str) -> None:
    with pytest.raises(UsageError, match="ccbed_start_timeout: must be"):
        bed(1, more=f", ccbed_start_timeout: {value}")
