"""A held fault waits for ranks that are late: those of faults with its trigger, and one that is inside the same collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.core.engine import engine
from orchestrator.core.engine.state import Result, State
from orchestrator.model.event import Clock, Command, Source, event
from orchestrator.model.events import FaultAct, RankHeld, RankInside, TimerDone
from orchestrator.model.payload import Payload
from orchestrator.model.trial import Trial

from ..sim import world

TRIAL = world.trial(world.crash(1), world.crash(3, id="f1"))


def step(
    state: State, payload: Payload, node: str | None = None, key: str | None = None, trial: Trial = TRIAL
) -> Result:
    source = Source(writer="rank" if node else "ctl", n=1, node=node, incarnation=node and f"{node}-1")
    at = Clock(boot="b", mono=1.0, wall=1.0)
    about = {"key": key, "type": "ok"} if key else {"node": node, "epoch": 0}
    return engine.step(trial, state, event(payload, at=at, source=source, **about))


def held(state: State, rank: int, fault: str) -> Result:
    return step(state, RankHeld(rank=rank, step=30, phase="allreduce", hold=fault), node=f"n{rank}")


def fired(state: State, commands: Sequence[Command]) -> Result:
    """The only timer among these commands has fired."""
    (timer,) = commands
    return step(state, TimerDone(), key=timer.key)


def hit(commands: Sequence[Command]) -> list[str | None]:
    return [order.node for order in commands if isinstance(order.data, FaultAct)]


@pytest.fixture
def waiting() -> Result:
    """Rank 1 is held, and rank 3 has not come while the other ranks were awaited."""
    state, _ = engine.begin(TRIAL, world.plan(TRIAL))
    state = replace(state, stage="run", awaited=frozenset(), lineage=((0, 0),))
    state, commands = held(state, 1, "f0")
    assert hit(commands) == []
    return fired(state, commands)


def test_a_rank_that_is_late_is_waited_for(waiting: Result) -> None:
    state, commands = waiting
    assert hit(commands) == []
    state, commands = held(state, 3, "f1")
    assert sorted(map(str, hit(fired(state, commands)[1]))) == ["n1", "n3"]


def test_a_rank_that_does_not_come_is_not_waited_for_until_the_hold_is_over(waiting: Result) -> None:
    state, commands = waiting
    (timer,) = commands
    assert 0 < timer.value["after_s"] <= TRIAL.liveness.hold_s / 2
    assert hit(fired(state, commands)[1]) == ["n1"]


def test_a_rank_that_enters_the_collective_late_is_waited_for() -> None:
    """Else nothing would show that the fault was in its midst. All others come 0.3 s after the held rank."""
    trial = world.trial(world.crash(1))
    state, _ = engine.begin(trial, world.plan(trial))
    state = replace(state, stage="run", awaited=frozenset(), lineage=((0, 0),))
    state, commands = step(state, RankHeld(rank=1, step=30, phase="allreduce", hold="f0"), node="n1", trial=trial)
    (order,) = commands
    state, commands = step(state, TimerDone(), key=order.key, trial=trial)
    assert hit(commands) == []
    for rank in (0, 2, 3):
        assert hit(commands) == []
        entered = RankInside(rank=rank, step=30, phase="allreduce", hold="f0")
        state, commands = step(state, entered, node=f"n{rank}", trial=trial)
    assert hit(commands) == ["n1"]
