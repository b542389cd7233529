"""The way back of every worker by the watcher's records, and runs of one job under several systems side by side."""

from __future__ import annotations

import dataclasses
from typing import cast

from orchestrator.model import watch
from orchestrator.model.run import NodeFiles, Run
from orchestrator.reports.page import systems_page as page
from orchestrator.views import failovers
from orchestrator.views.training.compared_systems import systems
from orchestrator.views.training.worker_returns import with_return, worker_returns

from . import history


def _process(run: Run, slot: int, began: float, ends: list[float], epoch: int = 0, node: str = "") -> watch.WatchFile:
    """A worker that began and completed steps at these seconds of the run; each step took 0.01 s."""
    begin = run.history.events[0]
    mono = begin.at.mono - begin.t
    head = watch.Begin(t=mono + began, format=1, rank=slot, pid=int(began * 10), local_rank=0, boot=begin.at.boot)
    steps = [watch.Step(t=mono + t, n=n, start=mono + t - 0.01, end=mono + t) for n, t in enumerate(ends, 1)]
    name = node or f"n{slot}"
    return watch.WatchFile(
        path=f"nodes/{name}/i1-e{epoch}/watch-r{slot}-{head.pid}.jsonl", node=name, attempt=epoch, rank=slot, pid=head.pid,
        lines=(head, *steps),
    )  # fmt: skip


def _injected(run: Run) -> float:
    return next(event.t for event in run.history.events if event.f == "fault.injected")


def _run(files: list[watch.WatchFile], run: Run) -> Run:
    trial = dataclasses.replace(run.trial, workload="script", params={"file": "/job/train.py"})
    return dataclasses.replace(run, trial=trial, files=cast(NodeFiles, _Files(files)))


class _Files:
    def __init__(self, files: list[watch.WatchFile]) -> None:
        self._files = files

    def watch(self) -> list[watch.WatchFile]:
        return self._files

    def steps(self) -> list[object]:
        return []


def _restarted(run: Run) -> list[watch.WatchFile]:
    """Four workers before the fault, and four new ones after it; the lost node's is on the spare."""
    at = _injected(run)
    before = [_process(run, slot, 0.01, [at - 0.02, at - 0.005]) for slot in range(4)]
    after = [
        _process(run, slot, at + 0.5, [at + 1.0 + 0.1 * slot, at + 2.0], epoch=1, node="n4" if slot == 2 else "")
        for slot in range(4)
    ]
    return [*before, *after]


def test_the_last_worker_decides_when_all_are_back() -> None:
    run = history.reference()
    result = worker_returns(_run(_restarted(run), run))[0]
    assert result.first_step_s is not None
    assert abs(result.first_step_s - 1.3) < 1e-6
    assert (result.survivors, result.node, result.reason) == (0, "n2", "")


def test_a_step_that_had_begun_before_the_fault_does_not_count() -> None:
    run = history.reference()
    at = _injected(run)
    files = _restarted(run)
    files[0] = _process(run, 0, 0.01, [at - 0.02, at + 0.005])
    result = worker_returns(_run(files, run))[0]
    assert result.workers["0.0"] == min(result.workers.values()) >= 0.9


def test_workers_that_go_on_are_back_with_their_next_step() -> None:
    run = history.reference()
    at = _injected(run)
    files = [_process(run, slot, 0.01, [at - 0.02, at + 0.2]) for slot in (0, 1, 3)]
    files += [_process(run, 2, 0.01, [at - 0.02]), _process(run, 2, at + 0.5, [at + 3.0], epoch=1, node="n4")]
    result = worker_returns(_run(files, run))[0]
    assert result.survivors == 3
    assert result.first_step_s is not None
    assert abs(result.first_step_s - 3.0) < 1e-6


def test_a_worker_that_does_not_come_back_leaves_no_figure() -> None:
    run = history.reference()
    result = worker_returns(_run(_restarted(run)[:-1], run))[0]
    assert result.first_step_s is None
    assert result.reason == "no step of group rank 3 after the fault"


def test_a_node_without_records_leaves_no_figure() -> None:
    run = history.reference()
    files = [file for file in _restarted(run) if file.rank != 1]
    result = worker_returns(_run(files, run))[0]
    assert result.first_step_s is None
    assert "group rank 1: the watcher recorded no step there" in result.reason


def test_the_table_has_a_column_for_each_system_and_names_what_differs() -> None:
    run = history.reference()
    own = _run(_restarted(run), run)
    theirs = dataclasses.replace(
        own, trial=dataclasses.replace(own.trial, params={**own.trial.params, "launcher": "torchrun"})
    )
    columns = systems([("", own), ("best", theirs)])
    table = {row[0]: row[1:] for row in page.rows(columns)}
    assert [column.system for column in columns] == ["ccbed", "best"]
    assert table["first step of every rank"] == ("1.3 s", "1.3 s")
    other = dataclasses.replace(theirs, trial=dataclasses.replace(theirs.trial, params={"file": "/job/other.py"}))
    assert any("jobs differ" in note for note in page.notes(systems([("", own), ("", other)])))
    html = page.render(columns).decode()
    assert "<h1>2 runs, side by side</h1>" in html and html.count('class="bar"') == 2


def test_where_launchers_recover_the_records_give_the_time_to_recover() -> None:
    run = history.reference()
    (back,) = worker_returns(_run(_restarted(run), run))
    (failover,) = failovers(run.trial, run.history)
    theirs = dataclasses.replace(failover, ttr_s=None)
    assert with_return(theirs, {back.id: back}).ttr_s == back.first_step_s
    assert with_return(failover, {back.id: back}) == failover, "a figure of the history stays"
    assert with_return(theirs, {}).ttr_s is None
