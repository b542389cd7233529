"""Failover in virtual time: which commands follow from which losses."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.core.engine import engine, faults, fold
from orchestrator.core.engine.state import FaultState
from orchestrator.model.event import Command, Event
from orchestrator.model.plan import Placement
from orchestrator.model.provider import Cursors
from orchestrator.model.trial import Liveness

from ..fakes.fake import FakeBed
from ..fakes.fake_cluster import FakeNode
from ..fakes.fake_ranks import FakeGang
from . import world
from .test_hosts_judged import bad, judged


def decisions(book: world.Memory) -> list[dict[str, object]]:
    return [dict(event.value) for event in book.events if event.f == "recovery.decided"]


def end(book: world.Memory) -> dict[str, object]:
    assert book.events[-1].f == "run.end"
    return dict(book.events[-1].value)


def test_a_run_without_faults_finishes_in_one_epoch() -> None:
    _, book = world.run(world.trial(), world.bed())
    assert end(book)["outcome"] == "finished"
    assert {e.epoch for e in book.events if e.f == "gang.start"} == {0}


def test_a_crashed_node_is_replaced_by_the_spare_from_the_newest_checkpoint() -> None:
    bed = world.bed()
    _, book = world.run(world.trial(world.crash(2)), bed)
    assert end(book)["outcome"] == "finished"
    assert [d["slots"] for d in decisions(book)] == [["n0", "n1", "n4", "n3"]]
    assert [e.value["step"] for e in book.events if e.f == "resume.chosen"] == [0, 25]
    assert bed.nodes["n2"].done["f/f0/act"] == 1
    assert bed.nodes["n2"].alive, "healed: the bed is as up left it"


def test_the_gang_is_stopped_before_anything_is_decided() -> None:
    _, book = world.run(world.trial(world.crash(2)), world.bed())
    answers = [e.seq for e in book.events if e.f == "gang.stop" and e.type == "ok" and e.epoch == 0]
    decided = next(e.seq for e in book.events if e.f == "recovery.decided")
    assert len(answers) == 3
    assert max(answers) < decided


@pytest.mark.parametrize("node", [0, 1, 2, 3])
@pytest.mark.parametrize("policy", [("spare",), ("restart",)])
def test_any_node_may_be_lost(node: int, policy: tuple[str, ...]) -> None:
    _, book = world.run(world.trial(world.crash(node), policy=policy), world.bed())
    assert end(book)["outcome"] == "finished"
    assert decisions(book)[0]["policy"] == {f"n{node}": policy[0]}


def test_when_node_0_is_lost_the_store_moves_to_its_successor() -> None:
    _, book = world.run(world.trial(world.crash(0)), world.bed())
    assert [e.node for e in book.events if e.f == "store.open" and e.type == "invoke"] == ["n0", "n4"]


def test_without_a_policy_a_planned_loss_is_a_finding() -> None:
    _, book = world.run(world.trial(world.crash(2), policy=("none",)), world.bed())
    assert end(book)["kind"] == "finding"


def test_a_node_killed_by_hand_recovers_by_the_same_commands_as_a_planned_fault() -> None:
    bed = world.bed()
    bed.at(0.305, lambda: bed.kill("n2"))
    _, by_hand = world.run(world.trial(), bed)
    _, planned = world.run(world.trial(world.crash(2)), world.bed())

    def recovery(book: world.Memory) -> set[str]:
        return {str(e.key) for e in book.events if e.type == "invoke" and e.epoch == 1 and str(e.key).startswith("e1/")}

    assert recovery(by_hand) == recovery(planned)
    assert end(by_hand)["outcome"] == "finished"


def test_an_unplanned_loss_that_no_policy_replaces_is_a_failure_of_the_infrastructure() -> None:
    bed = world.bed()
    bed.at(0.2, lambda: bed.kill("n1"))
    _, book = world.run(world.trial(policy=("none",)), bed)
    assert end(book)["kind"] == "infrastructure"


def test_a_later_loss_of_a_node_that_a_fault_had_ended_before_is_not_planned() -> None:
    bed = world.bed()
    bed.at(0.5, lambda: bed.kill("n2"))
    _, book = world.run(world.trial(world.crash(2), policy=("restart",), max_restarts=1), bed)
    assert [decided["policy"] for decided in decisions(book)] == [{"n2": "restart"}]
    assert (end(book)["outcome"], end(book)["kind"]) == ("failed", "infrastructure")


def test_two_nodes_lost_in_one_window_are_one_recovery() -> None:
    bed = world.bed()
    bed.at(0.2, lambda: bed.kill("n1"))
    bed.at(0.2, lambda: bed.kill("n3"))
    _, book = world.run(world.trial(), bed)
    assert [d["policy"] for d in decisions(book)] == [{"n1": "spare", "n3": "restart"}]


def test_twice_in_a_row_uses_the_spare_then_restarts() -> None:
    faults = (world.crash(2), world.crash(1, id="f1", step=40))
    _, book = world.run(world.trial(*faults), world.bed())
    assert [d["policy"] for d in decisions(book)] == [{"n2": "spare"}, {"n1": "restart"}]
    assert end(book)["outcome"] == "finished"


def test_a_fault_during_the_recovery_of_another_starts_a_further_recovery() -> None:
    second = world.crash(1, id="f1", on="recovery.decided")
    bed = world.bed()
    _, book = world.run(world.trial(world.crash(2), second), bed)
    assert len(decisions(book)) == 2
    assert bed.nodes["n1"].done["f/f1/act"] == 1
    assert end(book)["outcome"] == "finished"


def test_a_fault_of_the_second_epoch_only_acts_there() -> None:
    second = world.crash(3, id="f1", step=27, epoch=1)
    _, book = world.run(world.trial(world.crash(2), second), world.bed())
    assert [e.epoch for e in book.events if e.f == "fault.act" and e.type == "invoke"] == [0, 1]


def test_a_fault_after_a_checkpoint_of_a_script_holds_its_rank_some_steps_later() -> None:
    """A checkpoint is committed every 5 steps: the second after step 10, and the rank is held in step 13."""
    trial = world.trial(world.crash(2, after_save=2, steps_later=3, phase="backward"), workload="script")
    _, book = world.run(trial, world.bed())
    (held,) = (e for e in book.events if e.f == "rank.held")
    assert (held.data.rank, held.data.step, held.data.phase) == (2, 13, "backward")
    assert {e.node for e in book.events if e.f == "rank.hold" and e.type == "ok"} == {"n0", "n1", "n2", "n3"}
    assert len(decisions(book)) == 1
    assert end(book)["outcome"] == "finished"


@pytest.mark.parametrize(("saves", "reason"), [(70, "nothing to prove"), (20, "waits for checkpoint 4")])
def test_a_fault_that_waits_for_a_checkpoint_that_never_comes_is_not_injected(saves: int, reason: str) -> None:
    trial = world.trial(world.crash(2, after_save=4, phase="backward"), workload="script")
    _, book = world.run(trial, world.bed(every=saves))
    (unreached,) = (e for e in book.events if e.f == "fault.unreached")
    assert reason in unreached.data.reason
    assert not [e for e in book.events if e.f == "fault.act"]


def test_a_pause_shorter_than_the_limit_needs_no_recovery() -> None:
    trial = world.trial(world.crash(2))
    _, book = world.run(trial, world.bed(), {"f0": world.pause(0.8)})
    assert decisions(book) == []
    assert end(book)["outcome"] == "finished"


@pytest.mark.parametrize("policy", [("spare",), ("restart",)])
def test_a_pause_that_is_never_healed_is_found_by_silence(policy: tuple[str, ...]) -> None:
    bed = world.bed()
    trial = world.trial(world.crash(2), policy=policy)
    _, book = world.run(trial, bed, {"f0": world.pause(None)})
    assert [d["detector"] for d in decisions(book)] == ["node.silent"]
    assert end(book)["outcome"] == "finished"
    assert bed.nodes["n2"].alive
    assert not bed.nodes["n2"].paused, "healed when the run ended"


def _killed_at_each_start(bed: FakeBed, node: str, times: int) -> None:
    """Something nobody planned kills a node a little after each of the first gangs has joined."""
    join, left = bed.ranks.join, [times]

    def joined(gang: FakeGang) -> None:
        join(gang)
        if left[0]:
            left[0] -= 1
            bed.at(0.005, lambda: bed.kill(node))

    bed.ranks.join = joined  # type: ignore[method-assign]


def test_a_crash_loop_is_stopped_before_the_budget_is_spent() -> None:
    bed = world.bed()
    _killed_at_each_start(bed, "n2", 6)
    _, book = world.run(world.trial(policy=("restart",), max_restarts=10), bed)
    assert end(book)["outcome"] == "failed"
    assert "crash loop" in str(end(book)["reason"])
    assert len(decisions(book)) == 1


@pytest.mark.parametrize("policy", [("spare", "restart"), ("restart",)])
def test_planned_crashes_at_one_step_are_no_crash_loop(policy: tuple[str, ...]) -> None:
    faults = tuple(world.crash(2, id=f"f{k}", step=30, epoch=k) for k in range(4))
    _, book = world.run(world.trial(*faults, policy=policy, max_restarts=4), world.bed())
    assert end(book)["outcome"] == "finished", end(book)["reason"]
    assert len(decisions(book)) == 4


def test_planned_crashes_do_not_hide_a_crash_loop() -> None:
    """n2 is killed by plan each time, n1 by something else as well: that is what is counted."""
    bed = world.bed()
    act = bed.keepers.inject

    def inject(command: Command, node: FakeNode, writer: str) -> None:
        act(command, node, writer)
        bed.kill("n1")

    bed.keepers.inject = inject  # type: ignore[method-assign]
    faults = tuple(world.crash(2, id=f"f{k}", step=30, epoch=k) for k in range(6))
    _, book = world.run(world.trial(*faults, policy=("restart",), max_restarts=10), bed)
    assert "crash loop" in str(end(book)["reason"])


def test_a_fault_that_was_not_proved_excuses_no_crash() -> None:
    bed = world.bed()
    bed.keepers.disarmed = {f"f{k}" for k in range(6)}
    act = bed.keepers.inject

    def inject(command: Command, node: FakeNode, writer: str) -> None:
        act(command, node, writer)
        bed.kill(node.name)

    bed.keepers.inject = inject  # type: ignore[method-assign]
    faults = tuple(world.crash(2, id=f"f{k}", step=30, epoch=k) for k in range(6))
    _, book = world.run(world.trial(*faults, policy=("restart",), max_restarts=10), bed)
    assert "crash loop" in str(end(book)["reason"])


@pytest.mark.parametrize("nodes", [(0, 1), (1, 3), (0, 1, 2), (0, 1, 2, 3)])
def test_nodes_with_one_trigger_are_lost_at_the_same_time_in_one_recovery(nodes: tuple[int, ...]) -> None:
    faults = tuple(world.crash(node, id=f"f{node}", step=30) for node in nodes)
    bed = world.bed()
    _, book = world.run(world.trial(*faults, max_restarts=1), bed)
    assert end(book)["outcome"] == "finished", end(book)["reason"]
    assert [set(d["policy"]) for d in decisions(book)] == [{f"n{node}" for node in nodes}]  # type: ignore[call-overload]
    acts = [event for event in book.events if event.f == "fault.act" and event.type == "invoke"]
    assert {event.epoch for event in acts} == {0}
    assert bad(judged(world.trial(*faults), book)) == []


def test_the_same_group_rank_named_twice_is_lost_twice_one_after_the_other() -> None:
    faults = (world.crash(2), world.crash(2, id="f1"))
    _, book = world.run(world.trial(*faults), world.bed())
    assert [d["policy"] for d in decisions(book)] == [{"n2": "spare"}, {"n4": "restart"}]
    assert end(book)["outcome"] == "finished"


@pytest.mark.parametrize("policy", [("spare",), ("restart",)])
def test_a_history_without_its_fault_lines_yields_the_same_commands_of_recovery(policy: tuple[str, ...]) -> None:
    """Faults decide when nodes are lost, never what follows; only the crash loop's limit leaves planned losses out."""
    trial = world.trial(world.crash(2), policy=policy)
    _, book = world.run(trial, world.bed())
    planned = ("fault.", "lease.", "heal.", "rank.held", "rank.inside")
    bare = [e for e in book.events if not e.f.startswith(planned) and not str(e.key).startswith("f/")]
    undisturbed = replace(trial, faults=())
    _, with_faults = fold.open_commands(trial, world.plan(trial), book.events)
    _, without = fold.open_commands(undisturbed, world.plan(undisturbed), bare)

    def of_epoch_1(commands: Sequence[Command]) -> list[Command]:
        return [command for command in commands if command.key.startswith("e1/")]

    assert of_epoch_1(without) == of_epoch_1(with_faults)
    assert of_epoch_1(without)


def test_the_budget_of_restarts_is_kept() -> None:
    faults = tuple(world.crash(2, id=f"f{k}", step=10 * k + 12) for k in range(3))
    _, book = world.run(world.trial(*faults, max_restarts=2), world.bed())
    assert "budget of 2 restarts" in str(end(book)["reason"])


def test_a_disarmed_fault_is_never_called_verified() -> None:
    bed = world.bed()
    bed.keepers.disarmed.add("f0")
    _, book = world.run(world.trial(world.crash(2)), bed)
    assert "fault.verified" not in world.names(book)
    assert end(book)["outcome"] == "finished"


def test_a_fault_whose_state_held_before_is_never_called_verified() -> None:
    bed = world.bed()
    bed.keepers.held_before.add("f0")
    _, book = world.run(world.trial(world.crash(2)), bed)
    assert "fault.verified" not in world.names(book)
    assert decisions(book) == []
    assert end(book)["outcome"] == "finished"


def test_a_run_that_does_not_end_is_ended_by_the_wall_limit() -> None:
    trial = world.trial(liveness=Liveness(wall_s=0.2))
    _, book = world.run(trial, world.bed())
    assert end(book)["outcome"] == "failed"
    assert "not finished after 0.2 s" in str(end(book)["reason"])


def test_a_trigger_that_is_never_reached_is_said() -> None:
    _, book = world.run(world.trial(world.crash(2, step=61)), world.bed())
    assert "fault.unreached" in world.names(book)


def test_every_command_is_closed_when_the_run_has_ended() -> None:
    _, book = world.run(world.trial(world.crash(2)), world.bed(), {"f0": world.pause(None)})
    closed = {e.key for e in book.events if e.type in ("ok", "fail", "info")}
    assert [e.key for e in book.events if e.type == "invoke" and e.key not in closed] == []


class _WithoutKeeper(FakeBed):
    """The keeper has died; agents live on."""

    def perform(self, command: Command) -> None:
        if command.f not in ("node.apply", "node.kill", "fault.act", "fault.heal"):
            super().perform(command)


def test_a_silent_node_that_nobody_can_restart_ends_the_run_long_before_the_wall_limit() -> None:
    bed = _WithoutKeeper(("n0", "n1", "n2", "n3", "n4"))

    def stop() -> None:
        bed.nodes["n2"].paused = True

    bed.at(0.2, stop)
    _, book = world.run(world.trial(policy=("restart",)), bed)
    assert "can replace n2" in str(end(book)["reason"])
    assert end(book)["kind"] == "infrastructure"
    assert book.events[-1].t < 180.0


def test_a_silent_node_that_nobody_can_restart_is_replaced_by_the_next_policy() -> None:
    bed = _WithoutKeeper(("n0", "n1", "n2", "n3", "n4"))

    def stop() -> None:
        bed.nodes["n2"].paused = True

    bed.at(0.2, stop)
    _, book = world.run(world.trial(policy=("restart", "spare")), bed)
    assert [d["slots"] for d in decisions(book)][-1] == ["n0", "n1", "n4", "n3"]
    assert any(e.f == "rank.finished" for e in book.events)


class _FailingStart(FakeBed):
    """The keeper answers that the agent ended while it started."""

    def perform(self, command: Command) -> None:
        if command.f == "node.apply":
            value = {"reason": "its agent ended while it started"}
            self.cluster.later(0.01, lambda: self.cluster.respond(command, "fail", value, "keeper"))
        else:
            super().perform(command)


def test_the_end_of_a_run_says_why_a_node_could_not_be_started_again() -> None:
    bed = _FailingStart(("n0", "n1", "n2", "n3", "n4"))
    bed.at(0.2, lambda: bed.kill("n2"))
    _, book = world.run(world.trial(policy=("restart",)), bed)
    assert "can replace n2: node.apply failed: its agent ended while it started" in str(end(book)["reason"])


class _LateLoss(FakeBed):
    """Starting a node takes a while, and another one is lost meanwhile."""

    def perform(self, command: Command) -> None:
        if command.f == "node.apply" and command.node == "n2":
            self.kill("n3")
            self.at(0.05, lambda: super(_LateLoss, self).perform(command))
        else:
            super().perform(command)


def test_a_node_that_is_lost_while_another_is_restored_is_restored_too() -> None:
    bed = _LateLoss(("n0", "n1", "n2", "n3", "n4"))
    _, book = world.run(world.trial(world.crash(2)), bed)
    assert end(book)["outcome"] == "finished"
    assert all(node.alive for node in bed.nodes.values())


def _heals_at_the_second_try() -> FakeBed:
    bed = world.bed()
    receive = bed.keepers.receive

    def receive_twice(command: Command) -> None:
        if command.f == "fault.heal" and not bed.nodes[str(command.node)].done["tried"]:
            bed.nodes[str(command.node)].done["tried"] += 1
            bed.cluster.respond(command, "fail", {"reason": "healing not verified"}, writer="keeper")
        else:
            receive(command)

    bed.keepers.receive = receive_twice  # type: ignore[method-assign]
    return bed


def test_a_rollback_that_failed_is_ordered_again_under_another_key_when_the_run_ends() -> None:
    bed = _heals_at_the_second_try()
    _, book = world.run(world.trial(world.crash(2)), bed, {"f0": world.pause(0.5)})
    heals = [e.key for e in book.events if e.f == "fault.heal" and e.type == "invoke"]
    assert heals == ["f/f0/heal", "f/f0/heal/2"]
    assert not bed.nodes["n2"].paused


def test_ranks_that_were_inside_in_an_epoch_that_is_over_are_not_inside_any_more() -> None:
    trial = world.trial(world.crash(2))
    state, _ = engine.begin(trial, world.plan(trial))
    state = replace(state, faults={"f0": FaultState(inside=frozenset({0, 1, 3}))})
    assert faults.release_held(state).faults["f0"] == FaultState()


def test_a_fault_after_a_time_counts_from_the_first_gang_that_started_whichever_epoch_that_is() -> None:
    bed = world.bed()
    bed.kill("n3")
    _, book = world.run(world.trial(world.crash(2, after_s=0.2)), bed)
    assert [e.epoch for e in book.events if e.f == "fault.act" and e.type == "invoke"] == [1]


def test_a_second_answer_to_a_command_changes_nothing_when_the_history_is_folded() -> None:
    trial = world.trial(world.crash(2, on="gang.start", nth=6))
    _, book = world.run(trial, world.bed())
    doubled = [repeated for e in book.events for repeated in (e,) * (1 + (e.type == "ok"))]
    plan = world.plan(trial)
    assert fold.open_commands(trial, plan, doubled) == fold.open_commands(trial, plan, book.events)


def test_what_a_workload_emits_cannot_end_a_run_or_break_the_loop() -> None:
    bed = world.bed()
    odd: dict[str, dict[str, object]] = {"run.end": {"outcome": "finished"}, "progress": {}}
    for number, (name, value) in enumerate(odd.items()):
        bed.at(0.1 + number / 100, functools.partial(bed.cluster.emit, "n1", "rank-1.e0", name, value, epoch=0))
    _, book = world.run(world.trial(), bed)
    assert end(book)["outcome"] == "finished"
    assert book.events[-1].source.writer == "ctl"


@pytest.mark.parametrize("seed", range(25))
def test_the_history_lacks_nothing_that_was_said_before_the_files_were_fetched(seed: int) -> None:
    bed, book, written = world.bed(seed=seed, doubled=0.3), world.Memory(), set[object]()
    trial = world.trial(world.crash(2), world.crash(1, id="f1", step=40))
    loop, poll = world.loop(trial, world.plan(trial), bed, book), bed.poll
    for millisecond in range(2000):
        bed.at(millisecond / 1000, functools.partial(bed.cluster.emit, "n3", "agent", "mine.chatter", {}))

    def batches(cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Several events at once, as files deliver them."""
        for _ in range(12 if timeout_s else 0):
            poll({"received": len(bed.received)}, 0.001)
        return poll(cursors, timeout_s)

    bed.poll = batches  # type: ignore[method-assign]

    def gather() -> dict[str, object]:
        written.update(event.source.identity for event in bed.received)
        return {}

    loop.gather = gather
    loop.run()
    assert written <= {event.source.identity for event in book.events}


@pytest.mark.parametrize("is_quarantined", [False, True])
def test_a_spare_that_is_missing_because_of_a_quarantine_is_no_finding_about_the_system_under_test(
    is_quarantined: bool,
) -> None:
    """Two planned losses with one spare: the other spare of the bed has the slot of a node in quarantine."""
    trial = world.trial(world.crash(2), world.crash(3, id="f1", step=40), policy=("spare",))
    bed, book, plan = world.bed(), world.Memory(), world.plan(trial)
    if is_quarantined:
        nodes = {**plan.nodes, "n1": replace(plan.nodes["n1"], role="spare")}
        placement = Placement(quarantined={"n9": "is set aside since a night"})
        plan = replace(plan, nodes=nodes, placement=placement, substitutes={"n9": "n1"})
    world.loop(trial, plan, bed, book).run()
    lost = "lost n3; no policy of ['spare'] can replace n3"
    used = "; the spare n1 has the place of n9, which is set aside since a night"
    wanted = (lost + used, "infrastructure") if is_quarantined else (lost, "finding")
    assert (end(book)["reason"], end(book)["kind"]) == wanted
