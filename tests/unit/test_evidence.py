"""A history whose times or decisions cannot be, and events that a writer's own file does not confirm, are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator import views
from orchestrator.core.verdict import replay
from orchestrator.model.event import Event, History
from orchestrator.model.run import Run
from orchestrator.node.files.event_log import EventLog
from orchestrator.store import bundle, unpack

BUNDLES = Path(__file__).parents[1] / "golden" / "bundles"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with unpack.unpacked(BUNDLES / "format-1-failover.tar.gz") as unpacked:
        yield unpacked


@pytest.fixture(scope="module")
def run(directory: Path) -> Run:
    return bundle.load(directory)


def times(run: Run) -> list[str]:
    return [finding.text for finding in views.event_times(run.history, tuple(run.files.steps()))]


def changed(run: Run, f: str, change: Callable[[Event], Event], type: str | None = None) -> Run:
    """The run with its last event of this name (and type) changed."""
    place = max(n for n, e in enumerate(run.history.events) if e.f == f and type in (None, e.type))
    events = list(run.history.events)
    events[place] = change(events[place])
    return dataclasses.replace(run, history=History(tuple(events)))


def shifted(seconds: float, *, wall: bool = True, t: bool = True) -> Callable[[Event], Event]:
    def shift(event: Event) -> Event:
        at = dataclasses.replace(
            event.at, mono=event.at.mono + seconds, wall=event.at.wall + (seconds if wall else 0.0)
        )
        return dataclasses.replace(event, at=at, t=event.t + (seconds if t else 0.0))

    return shift


def valued(**value: Any) -> Callable[[Event], Event]:
    return lambda event: dataclasses.replace(event, value={**event.value, **value})


def test_the_times_of_a_real_run_can_be(run: Run) -> None:
    assert times(run) == []


@pytest.mark.parametrize(
    ("f", "type", "change"),
    [
        ("rank.step", "note", shifted(-0.5)),  # before the step itself was done
        ("fault.injected", "note", shifted(30.0)),  # after it had arrived
        ("gang.start", "ok", shifted(-5.0)),  # before it was asked for
        ("fault.act", "invoke", shifted(5.0)),  # after it was answered
        ("recovery.decided", "note", shifted(-3.0)),  # the controller's clock goes back
        ("recovery.decided", "note", shifted(0.01, wall=False, t=False)),  # another place than the clock gives
        ("node.exit", "note", lambda e: dataclasses.replace(e, t=e.t + 0.2)),
        ("resume.chosen", "note", lambda e: dataclasses.replace(e, at=dataclasses.replace(e.at, wall=e.at.wall - 1.0))),
    ],
)
def test_a_time_that_cannot_be_is_found(run: Run, f: str, type: str, change: Callable[[Event], Event]) -> None:
    assert times(changed(run, f, change, type))


@pytest.mark.parametrize("seconds", [30.0, -30.0])
@pytest.mark.parametrize(("place", "doubts"), [(0, 1), (60, 0), (-2, 1)])
def test_a_clock_that_was_set_during_a_run_is_no_contradiction(
    run: Run, place: int, doubts: int, seconds: float
) -> None:
    """From one event on, all later ones of the machine have another wall time; beside its first and last one it is unknown."""
    middle = sorted(event.at.mono for event in run.history.events)[place]
    events = [
        dataclasses.replace(e, at=dataclasses.replace(e.at, wall=e.at.wall + (seconds if e.at.mono > middle else 0.0)))
        for e in run.history.events
    ]
    changed = dataclasses.replace(run, history=History(tuple(events)))
    assert times(changed) == []
    assert len([*views.uncertain_times(changed.history)]) <= doubts


@pytest.mark.parametrize(
    ("f", "type", "change"),
    [
        ("recovery.decided", "note", valued(policy={"n2": "restart"})),
        ("recovery.decided", "note", valued(slots=["n0", "n1", "n2", "n3"])),
        ("resume.chosen", "note", valued(step=20)),
        ("fault.act", "invoke", valued(fault="pause-node")),
        ("fault.planned", "note", valued(trigger={"step": 31, "exact": True, "phase": "allreduce"})),
        ("gang.start", "invoke", valued(seed=8)),
        ("node.exit", "note", lambda e: dataclasses.replace(e, node="n1")),
        ("run.end", "note", valued(outcome="failed")),
    ],
)
def test_a_decision_that_does_not_follow_is_found(
    run: Run, f: str, type: str, change: Callable[[Event], Event]
) -> None:
    assert list(replay.contradictions(changed(run, f, change, type)))


def test_a_history_without_its_recovery_is_found(run: Run) -> None:
    events = tuple(event for event in run.history.events if event.f != "recovery.decided")
    assert list(replay.contradictions(dataclasses.replace(run, history=History(events))))


def test_events_of_every_keeper_are_read_wherever_its_directory_is(directory: Path) -> None:
    for name in ("keepers/keeper-h1/events.jsonl", "keepers/outside/keeper/events.jsonl"):
        log = EventLog(directory / name, writer="keeper")
        log.append("note", "node.exit", {"code": -9, "pid": 7}, node="n2")
        log.close()
    read = {path for path, _ in bundle.load(directory).files.event_lines() if path.startswith("keepers/")}
    assert read == {"keepers/keeper-h1/events.jsonl", "keepers/outside/keeper/events.jsonl"}


@pytest.mark.parametrize(
    ("writer", "is_expected"), [("watch-0-42.e0", True), ("rank-0.e0", True), ("watch-1-42.e0", False)]
)
def test_the_watcher_of_a_cold_rank_writes_into_the_file_of_its_rank(run: Run, writer: str, is_expected: bool) -> None:
    line = {"source": {"node": "n0", "incarnation": "aa", "writer": writer, "n": 1}}
    lines = [("nodes/n0/rank-0.e0.aa.jsonl", line)]
    files = Mock(wraps=run.files, event_lines=lambda: iter(lines))
    texts = [finding.text for finding in views.agreement(dataclasses.replace(run, files=files)).failures]
    assert any(f"has an event of {writer}" in text for text in texts) is not is_expected
