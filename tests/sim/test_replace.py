"""Policy ``replace`` in virtual time: a lost node is started on another host with room; the run waits for room, and says why it gave up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, fold
from orchestrator.core.engine.state import State
from orchestrator.model.act import Act
from orchestrator.model.event import Event
from orchestrator.model.events import (
    FaultVerified,
    GangStalled,
    GangStart,
    HostsDrained,
    NodeApply,
    NodeKill,
    RecoveryDecided,
    RecoveryRefused,
    RecoveryWaiting,
    ResumeChosen,
)
from orchestrator.model.plan import Plan
from orchestrator.model.trial import FaultPlan, Trial

from ..fakes.fake import FakeBed
from . import world
from .test_hosts_judged import bad, judged

#: One node on each of four hosts; two hosts have room for another one.
HOSTS = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h3", "n4": "h0", "n5": "h3"}
ROOM = ("n4", "n5")
FULL = dict(list(HOSTS.items())[:4])
SILENT = ("power-off", "cut-link", "stop-ssh")


def trial(*faults: FaultPlan, wait: float | None = None, policy: tuple[str, ...] = ("replace",), **more: Any) -> Trial:
    made = world.trial(*faults, policy=policy, **more)
    return replace(made, recovery=replace(made.recovery, replace_wait_s=wait))


def bed(hosts: Mapping[str, str] = HOSTS, **more: Any) -> FakeBed:
    """The nodes of ROOM are not started."""
    made = world.bed(hosts, **more)
    for name in ROOM:
        if name in made.nodes:
            made.nodes[name].alive, made.nodes[name].incarnation, made.nodes[name].ordinal = False, "", 0
            made.nodes[name].shown = ("", 0)
    return made


def plan(trial: Trial, hosts: Mapping[str, str] = HOSTS, acts: Mapping[str, Act] | None = None, **more: str) -> Plan:
    """``more``: host -> why it gets no replacement."""
    made = world.plan(trial, acts, hosts)
    nodes = {
        name: replace(node, role="replacement", incarnation="", ordinal=0, pid=0) if name in ROOM else node
        for name, node in made.nodes.items()
    }
    refused = {host: more.get(host, "") for host in dict.fromkeys(hosts.values())}
    return replace(
        made, nodes=nodes, spares=(), replacements=tuple(name for name in ROOM if name in nodes), hosts=refused
    )


def run(
    trial: Trial, bed: FakeBed, plan: Plan, drains: Callable[[], Mapping[str, str] | None] = lambda: None
) -> world.Memory:
    book = world.Memory()
    world.loop(trial, plan, bed, book, drains=drains).run()
    return book


def of(book: world.Memory, kind: type[Any]) -> list[Event[Any]]:
    return [event for event in book.events if event.kind is kind]


def end(book: world.Memory) -> dict[str, Any]:
    assert book.events[-1].f == "run.end"
    return dict(book.events[-1].value)


def decisions(book: world.Memory) -> list[tuple[dict[str, str], list[str]]]:
    return [(dict(event.data.policy), list(event.data.slots)) for event in of(book, RecoveryDecided)]


def assert_as_up_left_it(bed: FakeBed) -> None:
    assert {name for name, node in bed.nodes.items() if node.alive} == set(bed.nodes) - set(ROOM)


def test_a_node_that_exits_is_started_on_another_host_with_room() -> None:
    made, b = trial(world.crash(2)), bed()
    book = run(made, b, plan(made))
    assert end(book)["outcome"] == "finished"
    assert decisions(book) == [({"n2": "replace"}, ["n0", "n1", "n4", "n3"])]
    assert of(book, RecoveryDecided)[0].data.hosts == {"n4": "h0"}
    assert [event.data.step for event in of(book, ResumeChosen)] == [0, 25]
    assert {event.node: event.data.ranks for event in of(book, GangStart) if event.epoch == 1}["n4"] == (2,)
    assert bad(judged(made, book)) == []
    assert_as_up_left_it(b)


@pytest.mark.parametrize("fault", SILENT)
def test_a_host_that_is_lost_is_replaced_and_what_returns_there_does_nothing_in_the_new_attempt(fault: str) -> None:
    made, b = trial(world.crash(2)), bed(steps=300)
    book = run(made, b, plan(made, acts={"f0": world.host_act(fault, for_s=3.0)}))
    assert end(book) == {"outcome": "finished", "reason": "", "kind": ""}
    assert decisions(book) == [({"n2": "replace"}, ["n0", "n1", "n4", "n3"])]
    assert [event.node for event in of(book, GangStart) if event.epoch == 1] == ["n0", "n1", "n4", "n3"]
    kills = [event for event in of(book, NodeKill) if event.node == "n2"]
    assert kills[0].seq < next(event.seq for event in of(book, GangStart) if event.epoch == 1)
    assert bad(judged(made, book)) == []
    assert_as_up_left_it(b)


def test_hosts_that_are_full_drained_lost_or_refused_by_the_plan_are_named_with_their_reasons() -> None:
    made, b = trial(world.crash(2)), bed()
    drains = {"h0": "is set aside since noon by eve@desk: fan"}
    book = run(made, b, plan(made, h3="has n3, which is in quarantine"), lambda: drains)
    assert end(book)["outcome"] == "failed"
    assert end(book)["kind"] == "finding"
    (refused,) = of(book, RecoveryRefused)
    assert refused.data.reason == (
        "no policy of ['replace'] can replace n2: no other host has room: "
        "h0 is set aside since noon by eve@desk: fan; h1 is full (n1); h2 is where n2 was lost; h3 has n3, which is in quarantine"
    )
    assert not [event for event in of(book, NodeApply) if event.node in ROOM]
    assert_as_up_left_it(b)


def test_a_start_that_takes_long_is_no_standstill_though_the_fault_is_verified_meanwhile() -> None:
    """The keeper reports the fault of the attempt before, and the first step of the new one takes a second."""
    made, b = trial(world.crash(2)), bed(steps=300)
    world.delay(b, "node.apply", {"n4": 40.0})
    emit = b.cluster.emit

    def emit_late(node: str, writer: str, f: str, value: Mapping[str, Any], **more: Any) -> None:
        late_s = {"fault.verified": 4.0, "rank.step": 1.0, "progress": 1.0}.get(f, 0.0)
        epoch = {"epoch": 0} if f == "fault.verified" else {}
        b.cluster.later(late_s, lambda: emit(node, writer, f, value, **{**more, **epoch}))

    b.cluster.emit = emit_late  # type: ignore[method-assign]
    book = run(made, b, plan(made, acts={"f0": world.host_act("power-off")}))
    (verified,), (decided,) = of(book, FaultVerified), of(book, RecoveryDecided)
    assert decided.t < verified.t < decided.t + 10.0
    assert of(book, GangStalled) == []
    assert end(book)["outcome"] == "finished"


def test_without_room_it_gives_up_at_the_time_that_the_trial_says_and_not_before() -> None:
    made, b = trial(world.crash(2), wait=30.0), bed(FULL)
    book = run(made, b, plan(made, FULL, acts={"f0": world.host_act("power-off")}))
    (waiting,), (refused,) = of(book, RecoveryWaiting), of(book, RecoveryRefused)
    assert waiting.data.hosts == {
        "h0": "is full (n0)",
        "h1": "is full (n1)",
        "h2": "does not respond",
        "h3": "is full (n3)",
    }
    assert refused.t - waiting.t == pytest.approx(30.0, abs=0.3)
    assert "no other host has room after 30 s: h0 is full (n0)" in refused.data.reason
    assert "h2 does not respond" in end(book)["reason"]
    assert decisions(book) == []


def test_a_run_that_may_not_wait_gives_up_at_once() -> None:
    made = trial(world.crash(2))
    book = run(made, bed(FULL), plan(made, FULL))
    assert of(book, RecoveryWaiting) == []
    assert "no other host has room: h0 is full" in end(book)["reason"]


@pytest.mark.parametrize("fault", SILENT)
def test_a_host_that_returns_while_the_run_waits_is_room(fault: str) -> None:
    made, b = trial(world.crash(2), wait=60.0), bed(FULL)
    book = run(made, b, plan(made, FULL, acts={"f0": world.host_act(fault, for_s=6.0)}))
    (waiting,), (decided,) = of(book, RecoveryWaiting), of(book, RecoveryDecided)
    assert decisions(book) == [({"n2": "replace"}, ["n0", "n1", "n2", "n3"])]
    assert 3.0 < decided.t - waiting.t < 7.0
    assert b.nodes["n2"].ordinal == 2
    assert end(book)["outcome"] == "finished"
    assert bad(judged(made, book)) == []


def test_a_host_that_is_undrained_while_the_run_waits_is_room() -> None:
    made, b = trial(world.crash(2), wait=60.0), bed()
    drains = {"h0": "is drained: fan", "h3": "is drained: fan"}

    def read() -> Mapping[str, str]:
        return drains if b.time < 110.0 else {"h0": drains["h0"]}

    book = run(made, b, plan(made), read)
    assert [set(event.data.hosts) for event in of(book, HostsDrained)] == [{"h0", "h3"}, {"h0"}]
    assert decisions(book) == [({"n2": "replace"}, ["n0", "n1", "n5", "n3"])]
    assert end(book)["outcome"] == "finished"
    assert_as_up_left_it(b)


def test_drains_that_cannot_be_read_are_as_they_were() -> None:
    made, b = trial(world.crash(2)), bed()
    book = run(made, b, plan(made), lambda: {"h0": "is drained: fan"} if b.time < 100.3 else None)
    assert decisions(book)[0][1] == ["n0", "n1", "n5", "n3"]


def test_a_host_that_cannot_start_the_node_is_left_for_the_next_one() -> None:
    made, b = trial(world.crash(2)), bed()
    b.hosts["h0"].engine = False
    book = run(made, b, plan(made))
    assert decisions(book)[-1][1] == ["n0", "n1", "n5", "n3"]
    assert end(book)["outcome"] == "finished"


def test_many_hosts_that_cannot_start_it_are_no_crash_loop() -> None:
    hosts = {**FULL, "n4": "h4", "n5": "h5"}
    made, b = trial(max_restarts=9), bed(hosts)
    b.at(0.2, lambda: b.kill("n2"))
    for host in ("h4", "h5"):
        b.hosts[host].engine = False
    book = run(made, b, plan(made, hosts))
    assert "h4 could not start n4: node.apply failed: the engine does not answer" in end(book)["reason"]
    assert "h5 could not start n5" in end(book)["reason"]
    assert "crash loop" not in end(book)["reason"]


def test_a_replacement_that_is_lost_is_replaced_too_and_a_host_whose_node_was_lost_before_has_room() -> None:
    """n2 exits on h2 and goes to h3; that node exits as well, and only h2 has room for it."""
    hosts = {name: host for name, host in HOSTS.items() if name != "n4"}
    made, b = trial(world.crash(2), world.crash(2, id="f1", step=40)), bed(hosts)
    book = run(made, b, plan(made, hosts))
    assert [slots[2] for _, slots in decisions(book)] == ["n5", "n2"]
    assert end(book)["outcome"] == "finished"
    assert bad(judged(made, book)) == []
    assert_as_up_left_it(b)


def test_two_nodes_lost_with_their_host_get_a_place_each() -> None:
    hosts = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h2", "n4": "h0", "n5": "h1"}
    made, b = trial(world.crash(2)), bed(hosts)
    book = run(made, b, plan(made, hosts, acts={"f0": world.host_act("power-off", for_s=5.0)}))
    ((policies, slots),) = decisions(book)
    assert policies == {"n2": "replace", "n3": "replace"}
    assert sorted(slots) == ["n0", "n1", "n4", "n5"]
    assert bad(judged(made, book)) == []


def test_another_policy_that_helps_is_not_waited_in_front_of() -> None:
    made = trial(world.crash(2), wait=60.0, policy=("replace", "restart"))
    book = run(made, bed(FULL), plan(made, FULL))
    assert decisions(book) == [({"n2": "restart"}, ["n0", "n1", "n2", "n3"])]
    assert of(book, RecoveryWaiting) == []


def test_a_second_loss_while_the_run_waits_is_part_of_the_same_recovery() -> None:
    made, b = trial(world.crash(2), wait=60.0), bed(FULL)
    b.at(9.0, lambda: b.kill("n1"))
    book = run(made, b, plan(made, FULL, acts={"f0": world.host_act("power-off", for_s=20.0)}))
    assert end(book)["outcome"] == "failed"  # n1 was lost on a host that lives, and none other has room
    assert "can replace n1" in end(book)["reason"]
    assert len({event.key for event in book.events if event.type == "invoke"}) == len(
        [event for event in book.events if event.type == "invoke"]
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_losses_leave_a_run_that_ends_and_a_bed_as_up_left_it(seed: int) -> None:
    chosen = random.Random(seed)
    b = bed(every=chosen.choice((5, 10)), seed=seed)
    for _ in range(chosen.randint(1, 3)):
        name = chosen.choice(("n0", "n1", "n2", "n3"))
        b.at(chosen.uniform(0.0, 1.2), lambda name=name: b.kill(name))  # type: ignore[misc]
    host = chosen.choice(("h0", "h1", "h2", "h3"))
    if chosen.random() < 0.6:
        at, stays = chosen.uniform(0.0, 1.0), chosen.uniform(0.5, 40.0)
        b.at(at, lambda: b.cluster.power_off(host))
        b.at(at + stays, lambda: b.cluster.power_on(host))
    made = trial(wait=chosen.choice((None, 5.0, 60.0)), max_restarts=6)
    book = run(made, b, plan(made))
    assert (
        end(book)["outcome"] == "finished" or "can replace" in end(book)["reason"] or "does not" in end(book)["reason"]
    )
    for epoch in {event.epoch for event in of(book, GangStart)}:
        nodes = [event.node for event in of(book, GangStart) if event.epoch == epoch]
        assert len(set(nodes)) == len(nodes) <= 4
    if all(node.host != host or node.alive for node in b.nodes.values() if node.name not in ROOM):
        assert_as_up_left_it(b)


@pytest.mark.parametrize("wait", [None, 60.0])
def test_another_orchestrator_at_any_event_comes_to_the_same_state(wait: float | None) -> None:
    made = trial(world.crash(2), wait=wait)
    hosts, acts = (FULL, {"f0": world.host_act("power-off", for_s=5.0)}) if wait else (HOSTS, None)
    planned = plan(made, hosts, acts)
    book = run(made, bed(hosts), planned)
    states: list[State] = [engine.begin(made, planned)[0]]
    for event in book.events:
        states.append(engine.step(made, states[-1], event)[0])
    for count in range(0, len(book.events), 5):
        assert fold.open_commands(made, planned, book.events[:count])[0] == states[count]


@pytest.mark.parametrize("limit", range(150, 420, 15))
def test_an_orchestrator_that_dies_at_any_time_is_followed_by_one_that_ends_the_run(limit: int) -> None:
    made, b, book = trial(world.crash(2), wait=60.0), bed(), world.Memory(limit=limit)
    planned = plan(made, acts={"f0": world.host_act("power-off", for_s=5.0)})
    try:
        world.loop(made, planned, b, book).run()
    except world.Killed:
        world.wait(b, 3.0)
    book.limit = None
    if book.events[-1].f != "run.end":
        world.resume(made, planned, b, book)
    assert end(book)["outcome"] == "finished"
    assert_as_up_left_it(b)


def test_a_replacement_whose_start_is_reported_too_late_ends_with_the_run() -> None:
    made, b = trial(world.crash(2)), bed(steps=2000)
    world.delay(b, "node.apply", {"n4": 65.0})
    book = run(made, b, plan(made))
    assert [slots[2] for _, slots in decisions(book)] == ["n4", "n5"]
    assert [event.node for event in of(book, NodeKill) if event.node == "n4"]
    assert_as_up_left_it(b)
