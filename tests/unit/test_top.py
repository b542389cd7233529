"""``ccbed top``: a run at one moment, on a terminal until it ends, elsewhere once."""

from __future__ import annotations

import dataclasses
import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app.recorded import follow
from orchestrator.cli.render import top_view
from orchestrator.cli.verbs import top_verb
from orchestrator.model.event import History, event
from orchestrator.model.events import RankStep
from orchestrator.model.run import Run

from . import history
from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


def shown(run: Run) -> list[str]:
    return list(top_view.lines("r", run.trial, run.history))


def test_a_run_that_lost_a_node_shows_where_its_ranks_are_and_how_it_came_back() -> None:
    lines = shown(history.reference())
    assert lines[0].startswith("r · finished ") and lines[0].endswith(" · restart 1")
    assert lines[1].split() == ["NODE", "RANKS", "STATE", "STEP", "STEPS/S"]
    cells = {line.split()[0]: line.split()[1:3] for line in lines[2:7]}
    assert cells["n4"] == ["2", "finished"] and cells["n2"] == ["lost"] and cells["n0"][1] == "finished"
    assert lines[-2].startswith("fault     crash-node on n2: ") and lines[-2] != "fault     crash-node on n2: planned"
    assert lines[-1].startswith("recovery  restart 1: n2 lost, back in ")


@pytest.mark.parametrize("length", [0, 1, 5, 20, 60])
def test_each_moment_of_a_run_can_be_shown(length: int) -> None:
    assert shown(history.prefix(history.reference(), length))[0].startswith("r · running ")


def test_the_speed_is_that_of_the_last_seconds() -> None:
    run = history.clean()
    at, source = run.history.events[0].at, run.history.events[0].source
    steps = [(1.0, 1), (2.0, 2), (100.0, 40), (104.0, 48), (105.0, 50)]
    notes = [
        dataclasses.replace(event(RankStep(rank=0, step=step, offset=7), at=at, source=source, epoch=0), t=t)
        for t, step in steps
    ]
    recorded = History(tuple(notes))
    assert (top_view._speed(recorded, 0, 0), top_view._speed(recorded, 1, 0)) == (2.0, 0.0)
    assert top_view._steps(recorded, 0, 0)[-1] == (105.0, 57)


def test_a_terminal_shows_it_live_and_a_pipe_once(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = history.reference()
    watched: Any = SimpleNamespace(
        directory=ccbed.root / "r",
        trial=run.trial,
        events=lambda: iter(run.history.events),
        history=lambda: run.history,
    )
    monkeypatch.setattr(follow, "run", lambda session, request: watched)
    assert ccbed("top") == 0
    assert ccbed.out.splitlines() == shown(run)
    assert ccbed("top", "--json") == 0
    assert json.loads(ccbed.out)["nodes"][0]["node"] == "n0"
    out = io.StringIO()
    top_verb.follow_live(out, "r", run.trial, iter(run.history.events))
    assert f"{shown(run)[-1]}\n" in out.getvalue()
