"""Losing hosts in virtual time: who takes over, what is waited for, and how the run ends."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from orchestrator.core.engine import gang_commands, shutdown
from orchestrator.model.act import Act
from orchestrator.model.event import Command, Event

from ..fakes.fake import FakeBed
from ..fakes.fake_cluster import FakeNode
from . import world

SILENT = ("power-off", "cut-link", "stop-ssh")


def _decisions(book: world.Memory) -> list[dict[str, object]]:
    return [dict(event.value) for event in book.events if event.f == "recovery.decided"]


def _end(book: world.Memory) -> dict[str, object]:
    assert book.events[-1].f == "run.end"
    return dict(book.events[-1].value)


def _of(book: world.Memory, f: str, type: str) -> list[Event]:
    return [event for event in book.events if event.f == f and event.type == type]


def _assert_as_up_left_it(bed: FakeBed) -> None:
    assert all(host.answers and host.engine for host in bed.hosts.values())
    assert all(node.alive and not node.paused for node in bed.nodes.values())


def _run(fault: str, policy: Sequence[str] = ("spare", "restart"), **params: object) -> tuple[FakeBed, world.Memory]:
    bed = world.bed(world.HOSTS)
    trial = world.trial(world.crash(2), policy=tuple(policy))
    _, book = world.run(trial, bed, {"f0": world.host_act(fault, **params)})
    return bed, book


def test_a_node_that_exits_alone_is_replaced_by_the_standby_on_its_own_host() -> None:
    bed = world.bed(world.HOSTS)
    _, book = world.run(world.trial(world.crash(2)), bed)
    assert [d["slots"] for d in _decisions(book)] == [["n0", "n1", "n6", "n3"]]
    _assert_as_up_left_it(bed)


@pytest.mark.parametrize("fault", SILENT)
def test_a_silent_host_is_given_up_with_its_standby_and_another_host_takes_over(fault: str) -> None:
    bed, book = _run(fault)
    assert [d["detector"] for d in _decisions(book)] == ["node.silent"]
    assert [d["slots"] for d in _decisions(book)] == [["n0", "n1", "n4", "n3"]]
    assert _end(book)["outcome"] == "finished"
    assert _end(book)["kind"] == ""
    _assert_as_up_left_it(bed)


@pytest.mark.parametrize("fault", SILENT)
def test_silence_is_detected_within_two_and_a_half_seconds_and_the_host_is_not_waited_for(fault: str) -> None:
    _, book = _run(fault)
    injected = next(event for event in book.events if event.f == "fault.injected")
    silent = next(event for event in book.events if event.f == "node.silent")
    joined = [event for event in book.events if event.f == "gang.joined"]
    assert silent.t - injected.t < 2.5
    assert silent.value["seen"] == "unreachable"
    assert joined[-1].t - silent.t < 0.2


def test_only_silence_detects_a_power_cut() -> None:
    _, book = _run("power-off")
    statuses = [
        event.f for event in book.events if event.f in ("node.exit", "rank.exit", "node.silent") and event.epoch is None
    ]
    assert statuses[0] == "node.silent"


def test_an_engine_that_is_stopped_takes_its_standby_along_and_another_host_takes_over() -> None:
    bed, book = _run("stop-engine")
    assert [d["detector"] for d in _decisions(book)] == ["node.exit"]
    assert [d["slots"] for d in _decisions(book)][-1] == ["n0", "n1", "n4", "n3"]
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


def test_where_the_engine_is_stopped_a_restart_fails_and_the_next_policy_follows() -> None:
    bed, book = _run("stop-engine", ("restart", "spare"))
    assert [d["policy"] for d in _decisions(book)] == [{"n2": "restart"}, {"n2": "spare"}]
    assert [e.value["reason"] for e in _of(book, "node.apply", "fail")] == ["the engine does not answer"]
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


@pytest.mark.parametrize("fault", SILENT)
def test_no_restart_is_tried_on_a_silent_host_while_another_policy_can_help(fault: str) -> None:
    _, book = _run(fault, ("restart", "spare"))
    assert [d["policy"] for d in _decisions(book)] == [{"n2": "spare"}]


@pytest.mark.parametrize("fault", SILENT)
def test_where_only_a_restart_is_allowed_the_host_is_given_its_time_to_come_back(fault: str) -> None:
    bed, book = _run(fault, ("restart",), for_s=5.0)
    assert [d["policy"] for d in _decisions(book)] == [{"n2": "restart"}]
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


@pytest.mark.parametrize("fault", SILENT)
def test_a_host_that_stays_away_with_nothing_to_replace_it_is_a_finding_and_the_run_does_not_hang(fault: str) -> None:
    bed, book = _run(fault, ("restart",))
    end = _end(book)
    assert (end["outcome"], end["kind"]) == ("failed", "finding")
    assert "can replace n2" in str(end["reason"])
    assert book.events[-1].t < 60.0
    _assert_as_up_left_it(bed)


def test_a_host_that_is_lost_unplanned_and_not_replaced_is_a_failure_of_the_infrastructure() -> None:
    bed = world.bed(world.HOSTS)
    bed.at(0.2, lambda: bed.cluster.power_off("h2"))
    _, book = world.run(world.trial(policy=("none",)), bed)
    assert _end(book)["kind"] == "infrastructure"


def test_two_nodes_of_a_host_lost_with_it_are_a_finding_about_the_fault_that_was_aimed_at_one() -> None:
    hosts = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h2", "n4": "h0", "n5": "h1"}
    trial = world.trial(world.crash(2), policy=("none",))
    _, book = world.run(trial, world.bed(hosts), {"f0": world.host_act("power-off")})
    assert _end(book)["kind"] == "finding"


@pytest.mark.parametrize("fault", [*SILENT, "stop-engine"])
@pytest.mark.parametrize("seed", range(5))
def test_two_nodes_of_a_host_lost_in_one_window_are_one_recovery(fault: str, seed: int) -> None:
    hosts = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h2", "n4": "h0", "n5": "h1"}
    bed = world.bed(hosts, seed=seed)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.host_act(fault)})
    assert [d["policy"] for d in _decisions(book)] == [{"n2": "spare", "n3": "spare"}]
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


def test_a_partition_that_is_healed_before_anybody_is_missed_costs_nothing_but_time() -> None:
    bed, book = _run("cut-link", for_s=1.4)
    assert _decisions(book) == []
    assert "node.heard" in world.names(book)
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


def test_a_partition_healed_while_the_next_epoch_trains_brings_the_old_node_back_only_to_be_ended() -> None:
    bed = world.bed(world.HOSTS, steps=400)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.host_act("cut-link", for_s=3.0)})
    kill = next(event for event in book.events if event.f == "node.kill" and event.type == "invoke")
    exit_ = next(event for event in book.events if event.f == "node.exit" and event.node == "n2")
    joined = [event for event in book.events if event.f == "gang.joined"]
    assert kill.value["deadline_s"] <= 0.5
    assert joined[-1].t < exit_.t < book.events[-1].t - 0.5, "ended as soon as it could be told, while the others train"
    assert len(_decisions(book)) == 1
    assert _end(book)["outcome"] == "finished"


def test_a_silent_node_whose_keeper_answers_is_ended_before_the_next_epoch_acts() -> None:
    bed = world.bed(world.HOSTS)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.pause(None)})
    ended = next(event for event in book.events if event.f == "node.kill" and event.type == "ok")
    started = next(event for event in book.events if event.f == "gang.start" and event.epoch == 1)
    assert ended.node == "n2"
    assert ended.seq < started.seq
    _assert_as_up_left_it(bed)


class _DeafKeeper(FakeBed):
    def perform(self, command: object) -> None:
        if getattr(command, "f", "") != "node.kill":
            super().perform(command)  # type: ignore[arg-type]


def test_a_keeper_that_does_not_answer_delays_the_recovery_by_half_a_second_at_most() -> None:
    bed = _DeafKeeper(tuple(world.HOSTS), hosts=world.HOSTS)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.pause(None)})
    silent = next(event for event in book.events if event.f == "node.silent")
    started = next(event for event in book.events if event.f == "gang.start" and event.epoch == 1)
    assert 0.5 <= started.t - silent.t < 0.9


@pytest.mark.parametrize("is_killed", [True, False], ids=["the node has ended", "the node hangs"])
def test_a_keeper_that_is_dead_is_waited_for_once_and_the_run_ends_within_its_time_and_a_little(
    is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits of the recovery and of the shutdown, each as long, were added."""
    bed, book = world.bed(steps=3000), world.Memory()
    monkeypatch.setattr(bed.keepers, "receive", lambda command: None)

    def lose() -> None:
        bed.nodes["n2"].alive, bed.nodes["n2"].paused = not is_killed, not is_killed
        bed.cluster.on_node_killed("n2")

    trial = world.trial(policy=("restart",))
    bed.at(3.0, lose)
    world.loop(trial, world.plan(trial), bed, book).run()
    assert _end(book)["outcome"] == "failed" and _end(book)["kind"] == "infrastructure"
    assert "no reply within 60 s" in str(_end(book)["reason"])
    (lost,) = _of(book, "node.silent", "note")
    assert book.events[-1].t - lost.t < gang_commands.RESPONSE_S + gang_commands.SILENT_HOST_S + shutdown.SILENT_S + 5.0


def test_a_node_may_take_longer_to_start_on_a_keeper_that_has_not_responded_but_the_run_ends_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that imports torch on an overloaded machine starts in more than 10 s; two waits of 60 s would be too long."""
    bed, book = world.bed(steps=3000), world.Memory()
    receive = bed.keepers.receive
    monkeypatch.setattr(bed.keepers, "receive", lambda order: None if order.f == "node.apply" else receive(order))
    trial = world.trial(policy=("restart",))
    bed.at(3.0, lambda: bed.kill("n2"))
    world.loop(trial, world.plan(trial), bed, book).run()
    assert _end(book)["kind"] == "infrastructure"
    (lost,) = _of(book, "node.exit", "note")
    assert [event.value["deadline_s"] for event in _of(book, "node.apply", "invoke")] == [60.0, 30.0]
    assert book.events[-1].t - lost.t < gang_commands.RESPONSE_S + gang_commands.SILENT_START_S + 5.0


def test_a_host_that_never_comes_back_ends_the_run_as_a_failure_of_the_infrastructure_that_names_it() -> None:
    bed = world.bed(world.HOSTS)
    bed.hosts["h2"].lost_for_good = True
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.host_act("power-off", back_s=20.0)})
    end = _end(book)
    assert (end["outcome"], end["kind"]) == ("finished", "infrastructure")
    assert "f0 on the host of n2 could not be undone" in str(end["reason"])
    assert "n2 could not be started again" in str(end["reason"])
    assert book.events[-1].t < 120.0


def test_a_spare_on_a_silent_host_is_never_taken_even_if_it_is_the_only_one() -> None:
    hosts = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h3", "n4": "h2"}
    trial = world.trial(world.crash(2), policy=("spare",))
    _, book = world.run(trial, world.bed(hosts), {"f0": world.host_act("power-off")})
    assert "can replace n2" in str(_end(book)["reason"])


def test_a_host_lost_during_the_recovery_from_another_is_recovered_from_too() -> None:
    bed = world.bed(world.HOSTS)
    second = world.crash(1, id="f1", on="recovery.decided")
    acts: dict[str, Act] = {"f0": world.host_act("power-off"), "f1": world.host_act("cut-link")}
    _, book = world.run(world.trial(world.crash(2), second), bed, acts)
    assert [d["slots"] for d in _decisions(book)][-1] == ["n0", "n7", "n4", "n3"]
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


def test_a_host_that_is_lost_by_hand_is_recovered_from_on_the_same_path_and_told_at_the_end() -> None:
    bed = world.bed(world.HOSTS)
    bed.at(0.2, functools.partial(bed.cluster.power_off, "h2"))
    bed.at(6.0, functools.partial(bed.cluster.power_on, "h2"))
    _, book = world.run(world.trial(), bed)
    assert [d["slots"] for d in _decisions(book)] == [["n0", "n1", "n4", "n3"]]
    assert _end(book)["outcome"] == "finished"


def _slow_engine() -> FakeBed:
    """Its containers end at once; the engine itself takes three seconds to stop."""
    bed = world.bed(world.HOSTS)
    inject = bed.keepers.inject

    def inject_slowly(command: Command, node: FakeNode, writer: str) -> None:
        bed.keepers.perform(node, command.data.act.inject)
        bed.at(3.0, functools.partial(inject, command, node, writer))

    bed.keepers.inject = inject_slowly  # type: ignore[method-assign]
    return bed


def test_an_injection_that_takes_longer_than_the_run_is_proved_before_it_is_undone() -> None:
    bed = _slow_engine()
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.host_act("stop-engine")})
    order = [event.f for event in book.events if event.f in ("rank.finished", "fault.verified", "fault.healed")]
    assert [f for f in order if f != "rank.finished"] == ["fault.verified", "fault.healed"]
    assert order[0] == "rank.finished"
    _assert_as_up_left_it(bed)


def test_whoever_interrupts_does_not_wait_for_the_proof() -> None:
    bed, book, trial = _slow_engine(), world.Memory(), world.trial(world.crash(2))
    plan = world.plan(trial, {"f0": world.host_act("stop-engine")}, world.HOSTS)
    acted = functools.partial(_acted, book)
    assert world.loop(trial, plan, bed, book, is_interrupted=acted).run().stage == "suspended"
    healed = next(event.seq for event in book.events if event.f == "fault.heal" and event.type == "invoke")
    assert not [event for event in book.events if event.f == "fault.act" and event.type == "ok" and event.seq < healed]


def _acted(book: world.Memory) -> bool:
    return any(event.f == "fault.act" for event in book.events)


def test_a_frozen_node_alone_on_its_host_is_ended_before_the_next_epoch_acts_because_its_host_answered() -> None:
    hosts = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h3", "n4": "h4"}
    bed = world.bed(hosts)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.pause(None)})
    ended = next(event for event in book.events if event.f == "node.kill" and event.type == "ok")
    assert ended.seq < next(event.seq for event in book.events if event.f == "gang.start" and event.epoch == 1)


def test_a_host_that_was_away_before_a_new_orchestrator_came_is_found_silent_by_it() -> None:
    bed, book, trial = world.bed(world.HOSTS, steps=600), world.Memory(), world.trial()
    plan = world.plan(trial, None, world.HOSTS)
    book.limit = 60
    with pytest.raises(world.Killed):
        world.loop(trial, plan, bed, book).run()
    bed.cluster.cut("h2")
    world.wait(bed, 1.0)
    book.limit = None
    bed.at(12.0, lambda: bed.cluster.join("h2"))
    away = bed.time
    world.resume(trial, plan, bed, book)
    silent = next(event for event in book.events if event.f == "node.silent")
    assert silent.at.mono - away < 2.5
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)


class _LateKill(FakeBed):
    """What was sent to a host that was away arrives long after it is back."""

    def perform(self, command: Command) -> None:
        if command.f == "node.kill" and str(command.key).startswith("e1/"):
            self.at(9.0, lambda: super(_LateKill, self).perform(command))
        else:
            super().perform(command)


def test_a_node_whose_end_is_still_under_way_is_started_anew_whatever_it_answers() -> None:
    bed = _LateKill(tuple(world.HOSTS), hosts=world.HOSTS)
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.host_act("cut-link", for_s=2.4)})
    world.wait(bed, 20.0)
    assert _end(book)["outcome"] == "finished"
    _assert_as_up_left_it(bed)
