"""A report that arrives late belongs to the incarnation and the attempt that wrote it, and changes nothing of later ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.engine import engine
from orchestrator.core.engine.state import State
from orchestrator.model.event import Clock, Event, Source, event
from orchestrator.model.events import FenceWrite, NodeExit, RankExit
from orchestrator.model.payload import Payload

from . import world

TRIAL = world.trial()


def running(epoch: int = 1) -> State:
    """The second attempt of a gang, whose node n2 was started again."""
    state, _ = engine.begin(TRIAL, world.plan(TRIAL))
    nodes = {**state.nodes, "n2": replace(state.nodes["n2"], incarnation="n2-2", ordinal=2)}
    return replace(state, stage="run", epoch=epoch, nodes=nodes, awaited=frozenset())


def note(payload: Payload, incarnation: str, epoch: int | None = None) -> Event:
    source = Source(writer="keeper", n=1, node="n2", incarnation=incarnation)
    return event(payload, at=Clock(boot="b", mono=1.0, wall=1.0), source=source, node="n2", epoch=epoch)


@pytest.mark.parametrize(("incarnation", "stage"), [("n2-1", "run"), ("n2-2", "stop")])
def test_the_exit_of_an_earlier_incarnation_stops_no_gang(incarnation: str, stage: str) -> None:
    state, commands = engine.step(TRIAL, running(), note(NodeExit(code=-9, pid=7), incarnation))
    assert (state.stage, bool(commands)) == (stage, stage == "stop")


@pytest.mark.parametrize(("epoch", "stage"), [(0, "run"), (1, "stop")])
def test_the_exit_of_a_rank_of_an_earlier_attempt_stops_no_gang(epoch: int, stage: str) -> None:
    state, _ = engine.step(TRIAL, running(), note(RankExit(rank=2, code=1, pid=8, last_step=9), "n2-2", epoch))
    assert state.stage == stage
    assert state.failed == (frozenset({2}) if stage == "stop" else frozenset())


def test_only_the_first_attempt_makes_the_directory_of_the_checkpoints() -> None:
    """Later a directory that is missing is a share that is away, and not an empty one."""
    trial = world.trial(world.crash(2))
    _, book = world.run(trial, world.bed())
    orders = [item for item in book.events if item.type == "invoke" and isinstance(item.data, FenceWrite)]
    assert [(item.epoch, item.data.fresh) for item in orders] == [(0, True), (1, False)]
