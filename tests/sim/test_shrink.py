"""A gang that loses a node without a replacement goes on with the others, and grows back, in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, fold
from orchestrator.core.engine.state import State
from orchestrator.model.event import Event, History
from orchestrator.model.events import GangStart, RecoveryDecided, RecoveryGrown, ResumeChosen
from orchestrator.model.run import Run, StepRecord
from orchestrator.model.trial import FaultPlan, Trial, World

from ..fakes.fake import FakeBed
from ..unit.synthetic import Files
from ..unit.verdicts import ask
from . import world
from .test_hosts_judged import bad, judged


def trial(*faults: FaultPlan, policy: tuple[str, ...] = ("shrink",), least: int = 2, **more: Any) -> Trial:
    grow = more.pop("grow", None)
    made = world.trial(*faults, policy=policy, **more)
    recovery = replace(made.recovery, grow_after_s=grow)
    return replace(made, world=World(nodes=4, min_nodes=least), recovery=recovery)


def run(trial: Trial, bed: FakeBed | None = None) -> world.Memory:
    return world.run(trial, bed or world.bed())[1]


def end(book: world.Memory) -> dict[str, Any]:
    assert book.events[-1].f == "run.end"
    return dict(book.events[-1].value)


def of(book: world.Memory, kind: type[Any]) -> list[Event[Any]]:
    return [event for event in book.events if event.kind is kind]


def sizes(book: world.Memory) -> list[tuple[int, int, int]]:
    """(attempt, nodes, ranks) of each gang."""
    starts = {event.epoch or 0: event.data for event in of(book, GangStart)}
    return [(epoch, data.nodes, data.world_size) for epoch, data in sorted(starts.items())]


def ranks(book: world.Memory, epoch: int) -> dict[str, tuple[int, ...]]:
    return {str(event.node): event.data.ranks for event in of(book, GangStart) if event.epoch == epoch}


@pytest.mark.parametrize("lost", range(4))
def test_the_others_go_on_with_dense_ranks_from_the_newest_checkpoint(lost: int) -> None:
    book = run(trial(world.crash(lost)))
    left = [f"n{node}" for node in range(4) if node != lost]
    assert end(book)["outcome"] == "finished"
    assert sizes(book) == [(0, 4, 4), (1, 3, 3)]
    assert ranks(book, 1) == {name: (rank,) for rank, name in enumerate(left)}
    assert [event.data.step for event in of(book, ResumeChosen)] == [0, 25]
    (decided,) = of(book, RecoveryDecided)
    assert decided.data.policy == {f"n{lost}": "shrink"}
    assert bad(judged(trial(world.crash(lost)), book)) == []


def test_a_rank_that_the_smaller_gang_does_not_have_must_have_done_every_step_before() -> None:
    made = trial(world.crash(2))
    history = History(tuple(run(made).events))
    records = [
        StepRecord(epoch=epoch, node=f"n{rank}", rank=rank, step=step, loss="0x0p+0", start=0.0, end=0.0)
        for epoch, count, steps in ((0, 4, range(1, 30)), (1, 3, range(26, 61)))
        for rank in range(count)
        for step in steps
    ]
    lacking = [record for record in records if (record.epoch, record.rank) != (0, 3) or record.step < 25]
    for present, outcome in ((records, "pass"), (lacking, "fail")):
        files, extras = Files(records=present), {"plan.json": {"last_step": 60}}
        verdict = ask(Run(directory="r", trial=made, history=history, files=files, extras=extras), "no-step-lost")
        assert verdict.outcome == outcome, verdict.text


def test_a_spare_and_a_restart_come_before_a_smaller_gang_where_the_policy_says_so() -> None:
    both = (world.crash(2), world.crash(1, id="f1", step=40))
    for policy, expected in (
        (("spare", "shrink"), ["spare", "shrink"]),
        (("spare", "restart", "shrink"), ["spare", "restart"]),
        (("shrink", "spare"), ["shrink", "shrink"]),
    ):
        book = run(trial(*both, policy=policy))
        assert [next(iter(e.data.policy.values())) for e in of(book, RecoveryDecided)] == expected
        assert end(book)["outcome"] == "finished"


def test_a_node_that_cannot_be_started_again_is_left_out() -> None:
    bed = world.bed(dict(list(world.HOSTS.items())[:4]))
    bed.at(0.2, lambda: bed.cluster.stop_engine("h2"))
    book = run(trial(policy=("restart", "shrink")), bed)
    assert [event.data.policy for event in of(book, RecoveryDecided)] == [{"n2": "restart"}, {"n2": "shrink"}]
    assert sizes(book)[-1][1:] == (3, 3)


def test_below_the_minimum_the_recovery_is_refused_by_name() -> None:
    both = (world.crash(2), world.crash(1, id="f1", step=40))
    book = run(trial(*both, least=3))
    assert end(book)["outcome"] == "failed"
    assert "2 nodes are left, and the trial needs at least 3" in end(book)["reason"]


def test_two_nodes_lost_in_one_window_are_one_recovery() -> None:
    bed = world.bed()
    bed.at(0.2, lambda: bed.kill("n1"))
    bed.at(0.2, lambda: bed.kill("n3"))
    book = run(trial(), bed)
    assert sizes(book) == [(0, 4, 4), (1, 2, 2)]
    assert list(of(book, RecoveryDecided)[0].data.slots) == ["n0", "n2"]


def test_the_lost_node_rejoins_after_a_checkpoint_and_that_is_no_recovery() -> None:
    planned = trial(world.crash(2), grow=0.05, max_restarts=1)
    book = run(planned)
    assert sizes(book) == [(0, 4, 4), (1, 3, 3), (2, 4, 4)]
    (grown,) = of(book, RecoveryGrown)
    assert (grown.data.joined, grown.data.slots) == (("n2",), ("n0", "n1", "n3", "n2"))
    saved = max(e.value["step"] for e in book.events if e.f == "checkpoint.commit" and e.seq < grown.seq)
    assert of(book, ResumeChosen)[-1].data.step == saved > 25
    assert len(of(book, RecoveryDecided)) == 1
    assert bad(judged(planned, book)) == []


def test_a_script_grows_after_a_committed_save() -> None:
    book = run(trial(world.crash(2, after_save=2, steps_later=3, phase="backward"), workload="script", grow=0.05))
    assert [nodes for _, nodes, _ in sizes(book)] == [4, 3, 4]
    assert end(book)["outcome"] == "finished"


def test_without_the_option_the_gang_stays_small() -> None:
    assert [nodes for _, nodes, _ in sizes(run(trial(world.crash(2))))] == [4, 3]


def test_a_second_loss_in_the_smaller_gang_takes_the_node_that_is_there_again() -> None:
    """n2 is there again before a checkpoint; n1 is lost first: the next attempt has n2 already."""
    bed = world.bed(every=50)
    bed.at(0.2, lambda: bed.kill("n2"))
    bed.at(0.4, lambda: bed.kill("n1"))
    book = run(trial(grow=0.05), bed)
    decisions = of(book, RecoveryDecided)
    assert [list(event.data.slots) for event in decisions][:2] == [["n0", "n1", "n3"], ["n0", "n3", "n2"]]
    assert decisions[1].data.joined == ("n2",)
    assert end(book)["outcome"] == "finished"


def test_a_node_that_is_lost_again_while_it_waits_is_started_again() -> None:
    bed = world.bed(every=20)
    bed.at(0.2, lambda: bed.kill("n2"))
    bed.at(0.32, lambda: bed.kill("n2"))
    book = run(trial(grow=0.05), bed)
    assert [nodes for _, nodes, _ in sizes(book)] == [4, 3, 4]
    assert bed.nodes["n2"].ordinal == 3


def test_the_end_of_the_run_is_not_put_off_for_a_node_that_could_rejoin() -> None:
    bed = world.bed(every=30)
    bed.at(0.5, lambda: bed.kill("n2"))
    book = run(trial(grow=0.05), bed)
    assert [nodes for _, nodes, _ in sizes(book)] == [4, 3]
    assert end(book)["outcome"] == "finished"


@pytest.mark.parametrize("seed", range(60))
def test_any_losses_leave_a_run_that_ends_and_a_bed_that_is_whole(seed: int) -> None:
    """Random nodes die at random times, with and without a spare; the run ends and its verdicts hold."""
    chosen = random.Random(seed)
    bed = world.bed(every=chosen.choice((5, 10, 20)))
    for _ in range(chosen.randint(1, 4)):
        name = chosen.choice(("n0", "n1", "n2", "n3", "n4"))
        bed.at(chosen.uniform(0.0, 1.2), lambda name=name: bed.kill(name))  # type: ignore[misc]
    policy = chosen.choice((("shrink",), ("spare", "shrink"), ("spare", "shrink", "restart")))
    made = trial(policy=policy, least=chosen.randint(1, 3), grow=chosen.choice((None, 0.02, 0.2)), max_restarts=6)
    book = run(made, bed)
    allowed = range(made.world.least_nodes, 5)
    assert all(nodes in allowed and size == nodes for _, nodes, size in sizes(book))
    assert end(book)["outcome"] == "finished" or end(book)["reason"]
    assert all(node.alive for node in bed.nodes.values())
    ordered = [event.data for event in of(book, GangStart)]
    assert all(data.ranks == (data.group_rank,) for data in ordered)


@pytest.mark.parametrize("grow", [None, 0.05])
def test_another_orchestrator_at_any_event_comes_to_the_same_end(grow: float | None) -> None:
    """The fold of any beginning of the history is a state that the engine reached, and goes on from there."""
    made = trial(world.crash(2), grow=grow)
    book = run(made)
    plan = world.plan(made)
    states: list[State] = [engine.begin(made, plan)[0]]
    for event in book.events:
        states.append(engine.step(made, states[-1], event)[0])
    for count in range(0, len(book.events), 7):
        assert fold.open_commands(made, plan, book.events[:count])[0] == states[count]
