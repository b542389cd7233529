"""Recovery ``theirs`` in the engine: a lost node is replaced within the attempt, and survivors are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, faults
from orchestrator.core.engine.state import FaultStage, FaultState, State
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Clock, Command, Event, Source, event
from orchestrator.model.events import (
    CommandFailed,
    FaultAct,
    FaultActDone,
    GangStalled,
    GangStart,
    GangStop,
    NodeApply,
    NodeApplyDone,
    NodeExit,
    NodeKill,
    NodeSilent,
    Progress,
    RankExit,
    RankHeld,
    RankHold,
    RankInside,
    SaveCommitted,
)
from orchestrator.model.payload import Payload
from orchestrator.model.plan import Plan
from orchestrator.model.trial import THEIRS, FaultPlan, Trial, Trigger

from ..sim import world

KILL = Primitive(kind="signal", args={"signal": "KILL", "local_rank": 0})


def _running(max_restarts: int = 3, spares: bool = True, *planned: FaultPlan) -> tuple[Trial, State]:
    """Launchers run on four nodes, with or without a spare."""
    trial = world.trial(*planned, policy=(THEIRS,), max_restarts=max_restarts)
    plan: Plan = replace(world.plan(trial), policy=(THEIRS, "spare", "restart"), has_launcher=True)
    if not spares:
        plan = replace(plan, spares=())
    state, _ = engine.begin(trial, plan)
    return trial, replace(state, stage="start", awaited=frozenset(), lineage=((0, 0),))


def _event(payload: Payload, node: str, incarnation: int = 1, **about: Any) -> Event:
    source = Source(writer="keeper", n=1, node=node, incarnation=f"{node}-{incarnation}")
    return event(payload, at=Clock(boot="b", mono=1.0, wall=1.0), source=source, node=node, epoch=0, **about)


def _exit(rank: int, code: int = 0) -> Event:
    return _event(RankExit(rank=rank, code=code, pid=1, last_step=0), f"n{rank}")


def _lost(node: str, incarnation: int = 1) -> Event:
    return _event(NodeExit(code=-9, pid=1), node, incarnation)


def _notes(commands: Sequence[Command]) -> list[str]:
    return [command.data.f for command in commands if command.f == "note"]


def _orders(commands: Sequence[Command], kind: type[Payload]) -> list[Command]:
    return [command for command in commands if command.kind is kind]


def test_a_lost_node_is_replaced_by_the_spare_and_the_others_are_left_alone() -> None:
    trial, state = _running()
    state, commands = engine.step(trial, state, _lost("n2"))
    starts = _orders(commands, GangStart)
    assert _notes(commands) == ["recovery.replaced"]
    assert [(start.node, start.epoch, start.value["group_rank"]) for start in starts] == [("n4", 0, 2)]
    assert not _orders(commands, GangStop)
    assert (state.stage, state.epoch, state.slots) == ("start", 0, ("n0", "n1", "n4", "n3"))


def test_without_a_spare_the_node_is_restarted_and_its_launcher_starts_there() -> None:
    trial, state = _running(spares=False)
    state, commands = engine.step(trial, state, _lost("n2"))
    apply = _orders(commands, NodeApply)[0]
    done = _event(NodeApplyDone(incarnation="n2-2", ordinal=2, pid=2), "n2", 2, key=apply.key)
    state, commands = engine.step(trial, state, done)
    start = _orders(commands, GangStart)[0]
    assert (start.node, start.incarnation, start.value["group_rank"]) == ("n2", "n2-2", 2)
    _, commands = engine.step(trial, state, _lost("n2", 2))
    assert _orders(commands, NodeApply)[0].key != apply.key, "a second loss is a command of its own"


def test_a_silent_node_is_killed_before_its_launcher_starts_again() -> None:
    trial, state = _running(spares=False)
    state, commands = engine.step(trial, state, _event(NodeSilent(silent_s=2.0, seen="running"), "n2"))
    assert [command.kind for command in commands if command.f != "note"] == [NodeKill]


def test_a_launcher_that_gives_up_ends_the_run_as_a_finding() -> None:
    trial, state = _running()
    state, commands = engine.step(trial, state, _exit(1, code=1))
    assert state.ending is not None
    assert (state.ending.outcome, state.ending.kind) == ("failed", "finding")
    assert "launcher on n1 gave up: exit code 1" in state.ending.reason
    assert len(_orders(commands, GangStop)) == 4


def test_an_unplanned_loss_before_it_makes_that_a_problem_of_the_hosts() -> None:
    trial, state = _running()
    state, _ = engine.step(trial, state, _lost("n2"))
    state, _ = engine.step(trial, state, _exit(1, code=1))
    assert state.ending is not None
    assert state.ending.kind == "infrastructure"


def test_the_run_ends_when_every_launcher_has_left() -> None:
    trial, state = _running()
    for rank in range(3):
        state, _ = engine.step(trial, state, _exit(rank))
    assert state.ending is None
    state, _ = engine.step(trial, state, _exit(3))
    assert state.ending is not None
    assert state.ending.outcome == "finished"


@pytest.mark.parametrize("restarts", [0, 1])
def test_losses_beyond_the_budget_are_left_to_the_launchers(restarts: int) -> None:
    trial, state = _running(max_restarts=restarts)
    for node in ("n2", "n3")[: restarts + 1]:
        state, commands = engine.step(trial, state, _lost(node))
    assert _notes(commands) == ["recovery.refused"]
    assert state.ending is None, "an elastic launcher may go on with fewer nodes"
    for rank in {0, 1, 2, 3} - state.vacant:
        state, _ = engine.step(trial, state, _exit(rank))
    assert state.ending is not None
    assert state.ending.outcome == "finished"


def test_a_node_that_cannot_be_restarted_is_left_to_the_launchers() -> None:
    trial, state = _running(spares=False)
    state, commands = engine.step(trial, state, _lost("n2"))
    key = _orders(commands, NodeApply)[0].key
    failed = _event(CommandFailed(reason="no memory"), "n2", key=key, f="node.apply", type="fail")
    state, commands = engine.step(trial, state, failed)
    assert _notes(commands) == ["recovery.refused"]
    assert state.vacant == {2}


def test_the_first_worker_of_the_target_is_held_after_the_second_checkpoint() -> None:
    """The bed counts workers by node and place: launchers give them other ranks after a loss."""
    trial, state = _launched(nproc=2)
    held = []
    for step in (10, 10, 20):
        state, commands = engine.step(trial, state, _event(SaveCommitted(rank=3, n=step, path=None, bytes=None), "n0"))
        held.append([(order.node, order.data.rank, order.data.step) for order in _orders(commands, RankHold)])
    assert held == [[], [], [(f"n{node}", 4, 23) for node in range(4)]]
    hold = RankHeld(rank=4, step=23, phase="backward", hold="f0")
    state, _ = engine.step(trial, state, _event(hold, "n2"))
    for rank in (0, 1, 2, 3, 5, 6, 7):
        inside = RankInside(rank=rank, step=23, phase="backward", hold="f0")
        state, commands = engine.step(trial, state, _event(inside, f"n{rank // 2}"))
        assert bool(_orders(commands, FaultAct)) is (rank == 7), "it acts once all other workers wait"


def test_a_week_of_checkpoints_is_counted_and_only_the_newest_are_kept() -> None:
    trial, state = _running()
    for step in range(1, 101):
        state, _ = engine.step(trial, state, _event(SaveCommitted(rank=0, n=step, path=None, bytes=None), "n0"))
    assert (state.save_count, len(state.newest_saves)) == (100, faults.RECENT)
    assert state.newest_saves[-1] == (0, 100, 0)


def test_ranks_report_steps_often_while_a_fault_or_the_planned_stop_waits_for_them() -> None:
    trial, state = _running()
    assert not faults.awaits_steps(trial, state)
    assert faults.awaits_steps(replace(trial, params={"stop_at": "step=30"}), state)
    trial, state = _launched()
    assert faults.awaits_steps(trial, state)
    ends = Act(inject=(KILL,), verify=(KILL,), heal=(), verify_heal=(), lease_s=1.0, safety="process", needs=())
    stages: tuple[tuple[FaultStage, float | None, bool], ...] = (
        ("acting", None, True), ("acted", None, False), ("acted", 5.0, True), ("healed", 5.0, False),
    )  # fmt: skip
    for stage, heals, awaits in stages:
        plan = replace(state.plan, acts={"f0": {"n2": replace(ends, heal_after_s=heals)}})
        state = replace(state, faults={"f0": FaultState(stage=stage, node="n2")}, plan=plan)
        assert faults.awaits_steps(trial, state) is awaits, (stage, heals)


def test_a_planned_stop_counts_the_steps_of_all_starts_of_a_worker() -> None:
    trial, state = _launched(stop_at="step=30")
    for pid, step in ((1, 10), (1, 20), (2, 5), (2, 9)):
        state, _ = engine.step(trial, state, _event(Progress(rank=0, step=step, steps=None, pid=pid), "n0"))
    assert (state.stop.total, state.ending) == (29, None)
    state, _ = engine.step(trial, state, _event(Progress(rank=1, step=30, steps=None, pid=7), "n1"))
    assert state.stop.total == 30, "not the sum over nodes"


def test_a_late_report_of_a_worker_that_the_fault_ended_is_no_recovery() -> None:
    trial, state = _launched(stop_at="step=5")
    acting = FaultState(stage="acting", node="n2", epoch=0)
    ends = Act(inject=(KILL,), verify=(KILL,), heal=(), verify_heal=(), lease_s=1.0, safety="process", needs=())
    acts = {"f0": {"n2": ends}}
    state = replace(state, faults={"f0": acting}, plan=replace(state.plan, acts=acts))
    reports = [(rank, 1, 6) for rank in range(4)]
    for rank, pid, step in reports:
        state, _ = engine.step(trial, state, _event(Progress(rank=rank, step=step, steps=None, pid=pid), f"n{rank}"))
    state, _ = engine.step(trial, state, _event(FaultActDone(verified=True), "n2", key="f/f0/act"))
    for rank, pid, step in reports:
        state, _ = engine.step(trial, state, _event(Progress(rank=rank, step=step, steps=None, pid=pid), f"n{rank}"))
    assert state.ending is None
    state, _ = engine.step(trial, state, _event(Progress(rank=2, step=1, steps=None, pid=2), "n2"))
    assert state.ending is not None
    assert "stopped as planned" in state.ending.reason


def test_workers_that_stand_still_under_their_launchers_are_a_finding() -> None:
    trial, state = _launched()
    state = replace(state, standstill="no step for 31 s: rank 1 is stopped by a signal")
    state, commands = engine.step(trial, state, _event(GangStalled(since_s=31.0), "n1"))
    assert state.ending is not None
    assert state.ending.kind == "finding"
    assert "rank 1 is stopped by a signal; the launchers did not end it" in state.ending.reason
    assert not _orders(commands, GangStart)


def _launched(**params: Any) -> tuple[Trial, State]:
    """A script under a launcher; it has a fault at its default trigger unless it stops as planned."""
    at = Trigger(phase="backward", after_save=2, steps_later=3)
    fault = FaultPlan(id="f0", fault="crash-rank", node=2, at=at)
    trial, state = _running(3, True, fault)
    return replace(trial, workload="script", params={"file": "a.py", "launcher": "torchrun", **params}), state
