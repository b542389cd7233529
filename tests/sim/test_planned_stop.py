"""A script that is ended on purpose: when, after which recovery, and what its history then shows."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.engine import planned_stop
from orchestrator.core.spec import parse_trial, trial_draft
from orchestrator.model.errors import UsageError
from orchestrator.model.trial import FaultPlan, Recovery, Trial, World

from ..fakes.fake import FakeBed
from ..fakes.fake_ranks import FakeGang
from ..unit.catalogue import CATALOGUE
from . import world


def script(stop_at: str, *faults: FaultPlan) -> Trial:
    return Trial(
        name="job", workload="script", params={"file": "train.py", "stop_at": stop_at}, faults=faults,
        world=World(nodes=4), recovery=Recovery(policy=("spare",), max_restarts=3),
    )  # fmt: skip


def watched_bed() -> FakeBed:
    """Ranks as the watcher reports them: steps of the process, and committed saves; the engine sees no checkpoint."""
    bed = world.bed()
    ranks = bed.ranks
    emit = ranks.emit

    def watched(gang: FakeGang, rank: int, f: str, value: Any) -> None:
        if f == "progress":
            for member in gang.ranks:
                emit(gang, member, "rank.step", {"step": value["step"]})
        elif f != "rank.step":
            emit(gang, rank, f, value)

    ranks.emit = watched  # type: ignore[method-assign]
    ranks.commit = lambda gang: emit(gang, 0, "save.committed", {"n": gang.step, "path": "s.pt"})  # type: ignore[method-assign]
    return bed


def of(book: world.Memory, f: str) -> list[Any]:
    return [event for event in book.events if event.f == f and event.type == "note"]


def only_end(book: world.Memory) -> dict[str, Any]:
    assert book.events[-1].f == "run.end"
    return dict(book.events[-1].value)


@pytest.mark.parametrize(("stop_at", "steps", "saves"), [("step=17", 17, 3), ("after-save=2", 10, 2)])
def test_a_run_is_stopped_at_its_point_and_has_finished(stop_at: str, steps: int, saves: int) -> None:
    bed = watched_bed()
    _, book = world.run(script(stop_at), bed)
    assert only_end(book) == {"outcome": "finished", "reason": f"stopped as planned at {stop_at}", "kind": ""}
    assert [event.value for event in of(book, "run.stopped")] == [{"at": stop_at, "steps": steps, "saves": saves}]
    assert all(node.alive for node in bed.nodes.values())


def test_a_run_is_stopped_after_a_time_from_the_start_of_its_ranks() -> None:
    _, book = world.run(script("0.3s"), watched_bed())
    started = max(event.t for event in of(book, "rank.start"))
    (stopped,) = of(book, "run.stopped")
    assert 0.3 <= stopped.t - started < 0.4
    assert only_end(book)["outcome"] == "finished"


@pytest.mark.parametrize(
    ("stop_at", "at"),
    [
        ("step=3", {"after_s": 0.3}),
        ("after-save=1", {"after_s": 0.3}),
        ("0.4s", {"after_s": 0.3}),
        ("after-save=2", {"on": "save.committed", "nth": 2}),
        ("after-save=2", {"on": "save.committed", "nth": 2, "after_s": 0.05}),
        ("after-save=2", {"after_save": 2, "steps_later": 3}),
    ],
)
def test_a_planned_fault_is_injected_and_recovered_first(stop_at: str, at: dict[str, Any]) -> None:
    _, book = world.run(script(stop_at, world.crash(2, **at)), watched_bed())
    (stopped,) = of(book, "run.stopped")
    after = {event.value["rank"] for event in of(book, "rank.step") if event.epoch == 1 and event.seq < stopped.seq}
    assert after == {0, 1, 2, 3}
    assert stopped.value["steps"] > 3
    assert only_end(book)["reason"] == f"stopped as planned at {stop_at}"


def test_a_fault_that_may_never_come_is_not_waited_for() -> None:
    _, book = world.run(script("step=10", world.crash(2, on="recovery.decided")), watched_bed())
    assert only_end(book)["outcome"] == "finished"
    assert [event.value["id"] for event in of(book, "fault.unreached")] == ["f0"]


def test_a_script_that_ends_before_its_stop_has_finished_by_itself() -> None:
    _, book = world.run(script("step=1000"), watched_bed())
    assert of(book, "run.stopped") == []
    assert only_end(book) == {"outcome": "finished", "reason": "", "kind": ""}


@pytest.mark.parametrize("limit", range(20, 400, 13))
def test_another_orchestrator_stops_the_run_at_the_same_point(limit: int) -> None:
    trial, bed, book = script("step=20", world.crash(1, after_s=0.1)), watched_bed(), world.Memory(limit=limit)
    plan = world.plan(trial)
    try:
        world.loop(trial, plan, bed, book).run()
    except world.Killed:
        book.limit = None
        world.resume(trial, plan, bed, book)
    assert only_end(book)["reason"] == "stopped as planned at step=20"
    assert len(of(book, "run.stopped")) == 1


@pytest.mark.parametrize(
    ("stop_at", "at"),
    [
        ("10s", {"after_s": 10.0}),
        ("step=30", {"step": 31}),
        ("after-save=2", {"on": "save.committed", "nth": 3, "after_s": 1.0}),
        ("after-save=2", {"after_save": 3, "steps_later": 2}),
    ],
)
def test_a_stop_that_certainly_comes_before_the_fault_is_refused(stop_at: str, at: dict[str, Any]) -> None:
    assert len(list(planned_stop.problems(script(stop_at, world.crash(2, **at))))) == 1
    assert list(planned_stop.problems(script("10m", world.crash(2, after_s=1.0)))) == []


@pytest.mark.parametrize("text", ["200", "step=0", "step=x", "after-save=", "10 m", "-5s"])
def test_a_stop_that_cannot_be_read_is_refused(text: str) -> None:
    document = parse_trial.open_document("{trial: t, workload: script, params: {file: a.py}}", "t.yml")
    override = trial_draft.Override(path=("params", "stop_at"), content=text, source="--stop-at")
    with pytest.raises(UsageError, match=r"--stop-at: .*must be step=200, after-save=3 or a time such as 10m"):
        parse_trial.build(document, CATALOGUE, [override])
