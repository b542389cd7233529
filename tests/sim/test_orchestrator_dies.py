"""The orchestrator is killed between every two events; whoever resumes ends with the same facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.core.engine.state import State
from orchestrator.model import event, events
from orchestrator.model.act import Act
from orchestrator.model.event import Source
from orchestrator.model.plan import Plan
from orchestrator.model.trial import Trial
from orchestrator.run.loop import AT_ONCE

from ..fakes.fake import FakeBed
from . import world

TRIALS = {
    "spare": (world.trial(world.crash(2)), None),
    "restart of node 0": (world.trial(world.crash(0), policy=("restart",)), None),
    "twice": (world.trial(world.crash(2), world.crash(1, id="f1", step=40)), None),
    "during recovery": (world.trial(world.crash(2), world.crash(1, id="f1", on="recovery.decided")), None),
    "paused": (world.trial(world.crash(2)), {"f0": world.pause(None)}),
    "power cut": (world.trial(world.crash(2)), {"f0": world.host_act("power-off")}),
    "partition": (world.trial(world.crash(2)), {"f0": world.host_act("cut-link")}),
    "partition, healed": (world.trial(world.crash(2)), {"f0": world.host_act("cut-link", for_s=2.6)}),
    "partition, restart": (
        world.trial(world.crash(2), policy=("restart",)),
        {"f0": world.host_act("cut-link", for_s=3.0)},
    ),
    "engine stopped": (world.trial(world.crash(2)), {"f0": world.host_act("stop-engine")}),
    "sshd gone": (world.trial(world.crash(2)), {"f0": world.host_act("stop-ssh")}),
}
#: Those in which a host is lost need some.
ON_HOSTS = ("power cut", "partition", "partition, healed", "partition, restart", "engine stopped", "sshd gone")


def _hosts(name: str) -> Mapping[str, str]:
    return world.HOSTS if name in ON_HOSTS else world.ONE_HOST


def _finish(
    trial: Trial, acts: dict[str, Act] | None, bed: FakeBed, limits: list[int], away_s: float = 0.003
) -> tuple[State, world.Memory]:
    """Run, dying at each journal length of ``limits`` in turn, each time for ``away_s``, then to the end."""
    hosts = {node.name: node.host for node in bed.nodes.values()}
    plan, book = world.plan(trial, acts, hosts), world.Memory()
    for limit in limits:
        book.limit = limit
        try:
            return (world.resume if book.events else _first)(trial, plan, bed, book), book
        except world.Killed:
            world.wait(bed, away_s)
    book.limit = None
    return (world.resume if book.events else _first)(trial, plan, bed, book), book


def _first(trial: Trial, plan: Plan, bed: FakeBed, book: world.Memory) -> State:
    return world.loop(trial, plan, bed, book).run()


def _assert_sound(trial: Trial, bed: FakeBed, book: world.Memory) -> None:
    assert book.events[-1].f == "run.end"
    assert book.events[-1].value["outcome"] == "finished", book.events[-1].value
    assert all(count == 1 for node in bed.nodes.values() for count in node.done.values())
    for fault in trial.faults:
        assert sum(node.done[f"f/{fault.id}/act"] for node in bed.nodes.values()) == 1
    for node in bed.nodes.values():
        assert node.alive
        assert not node.paused
    assert all(host.answers and host.engine for host in bed.hosts.values())
    invoked = [e.key for e in book.events if e.type == "invoke"]
    assert len(invoked) == len(set(invoked))
    assert [e.seq for e in book.events] == list(range(1, len(book.events) + 1))


@pytest.mark.parametrize("name", TRIALS)
def test_killed_between_every_two_events(name: str) -> None:
    trial, acts = TRIALS[name]
    reference, book = world.run(trial, world.bed(_hosts(name)), acts)
    for limit in range(2, len(book.events)):
        bed = world.bed(_hosts(name))
        state, resumed = _finish(trial, acts, bed, [limit])
        _assert_sound(trial, bed, resumed)
        assert state.epoch == reference.epoch, f"killed after event {limit}"


@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(TRIALS)),
    doubled=st.sampled_from([0.0, 0.2, 1.0]),
    unacknowledged_s=st.sampled_from([0.0, 0.01, 1.0]),
)
@example(seed=857, name="sshd gone", doubled=0.0, unacknowledged_s=0.0)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_across_writers_with_repeats(
    seed: int, name: str, doubled: float, unacknowledged_s: float
) -> None:
    trial, acts = TRIALS[name]
    bed = world.bed(_hosts(name), seed=seed, doubled=doubled, unacknowledged_s=unacknowledged_s)
    _, book = world.run(trial, bed, acts)
    _assert_sound(trial, bed, book)


@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(2, 190), min_size=2, max_size=4),
    name=st.sampled_from(sorted(TRIALS)),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_killed_several_times_in_one_run(seed: int, cuts: list[int], name: str) -> None:
    trial, acts = TRIALS[name]
    bed = world.bed(_hosts(name), seed=seed)
    _, book = _finish(trial, acts, bed, sorted(cuts))
    _assert_sound(trial, bed, book)


@pytest.mark.parametrize("after", [3, 20, 60, 75, 82, 95, 120])
def test_an_interrupted_run_heals_the_bed_and_goes_on_when_resumed(after: int) -> None:
    trial = world.trial(world.crash(2))
    plan, bed, book = world.plan(trial), world.bed(), world.Memory()
    loop = world.loop(trial, plan, bed, book, is_interrupted=lambda: len(book.events) >= after)
    assert loop.run().stage == "suspended"
    assert all(node.alive for node in bed.nodes.values())
    assert all(gang.over for gang in bed.gangs.values())
    assert world.resume(trial, plan, bed, book).stage == "done"
    assert book.events[-1].value["outcome"] == "finished"


@pytest.mark.parametrize("is_final", [False, True], ids=["suspended", "ended"])
def test_an_interrupt_is_answered_among_few_of_the_events_that_wait(is_final: bool) -> None:
    trial, interrupted = world.trial(world.crash(2)), list[int]()
    plan, bed, book = world.plan(trial), world.bed(), world.Memory()
    poll, note = bed.poll, events.RankStep(step=1, mark="newest", rank=0)

    def poll_many(*args: Any) -> Any:
        polled, cursors = poll(*args)
        if len(book.events) < 60 or interrupted:
            return polled, cursors
        interrupted.append(len(book.events))
        at, source = book.events[0].at, Source(node="n0", incarnation="n0-1", writer="flood", n=0)
        flood = [
            event.event(note, at=at, source=replace(source, n=n), node="n0", epoch=0) for n in range(1, 20 * AT_ONCE)
        ]
        return [*flood, *polled], cursors

    bed.poll = poll_many  # type: ignore[assignment,method-assign]
    state = world.loop(
        trial, plan, bed, book, is_interrupted=lambda: bool(interrupted), ends_by_interrupt=is_final
    ).run()
    number = [entry.f for entry in book.events].index("run.interrupted")
    assert number - interrupted[0] < 2 * AT_ONCE
    assert sum(entry.source.writer == "flood" for entry in book.events) == 20 * AT_ONCE - 1, "none of them is lost"
    assert state.stage == ("done" if is_final else "suspended")


@pytest.mark.parametrize("name", TRIALS)
def test_killed_anywhere_and_resumed_long_after_every_deadline(name: str) -> None:
    trial, acts = TRIALS[name]
    reference, book = world.run(trial, world.bed(_hosts(name)), acts)
    for limit in range(2, len(book.events), 5):
        bed = world.bed(_hosts(name))
        state, resumed = _finish(trial, acts, bed, [limit], away_s=700.0)
        _assert_sound(trial, bed, resumed)
        assert state.epoch == reference.epoch, f"killed after event {limit}"


def test_an_interrupted_run_that_is_resumed_much_later_has_the_whole_time_limit_again() -> None:
    trial = world.trial(world.crash(2))
    plan, bed, book = world.plan(trial), world.bed(), world.Memory()
    assert world.loop(trial, plan, bed, book, is_interrupted=lambda: len(book.events) >= 60).run().stage == "suspended"
    world.wait(bed, 3600.0)
    assert world.resume(trial, plan, bed, book).stage == "done"
    assert book.events[-1].value["outcome"] == "finished", book.events[-1].value


@pytest.mark.parametrize("delay_s", [2.0, 7.0, 20.0])
def test_an_interrupt_makes_no_node_lost_that_is_only_slow_to_stop_its_ranks(delay_s: float) -> None:
    """Many ranks on a busy machine end late, while the heartbeats of their agents go on."""
    trial = world.trial()
    plan, bed, book = world.plan(trial), world.bed(), world.Memory()
    world.delay(bed, "gang.stop", dict.fromkeys(("n1", "n2", "n3"), delay_s))
    before = {name: node.incarnation for name, node in bed.nodes.items()}
    assert world.loop(trial, plan, bed, book, is_interrupted=lambda: len(book.events) >= 60).run().stage == "suspended"
    assert {name: node.incarnation for name, node in bed.nodes.items()} == before, "no node is started again"
    assert world.names(book, "node.kill", "node.silent", "node.exit") == []
