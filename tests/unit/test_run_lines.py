"""A history as it is told to a person."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from orchestrator.cli.render import summary_lines
from orchestrator.cli.render.run_lines import RunLines
from orchestrator.model.event import History, event
from orchestrator.model.events import (
    CaseFacts,
    CollectiveMeasured,
    CollectivePlan,
    GangJoined,
    LinkProbing,
    ProbeDone,
    ProbeFigure,
    RankExit,
    RankStep,
    RankUnobserved,
)
from orchestrator.model.run import Run
from orchestrator.model.trial import FaultPlan, Trigger

from . import history


def lines_of(run: Run, events: History | None = None) -> list[str]:
    run_lines = RunLines(trial=run.trial, slots=("n0", "n1", "n2", "n3"))
    printed = [line for event in (events or run.history).events for line in run_lines.feed(event)]
    return [f"{line.label}: {line.text}" for line in printed if not line.passing]


def test_a_failover_is_told_from_the_hold_to_the_first_step() -> None:
    lines = lines_of(history.reference())
    labels = [line.split(":")[0] for line in lines]
    order = ["start", "step 30", "FAULT", "noticed", "restart 1", "resume", "step 26", "finished"]
    assert [label for label in labels if label in order][: len(order)] == [
        "start", "step 30", "FAULT", "noticed", "restart 1", "resume", "restart 1", "step 26",
    ]  # fmt: skip
    assert "start: 4 ranks on n0 n1 n2 n3" in lines
    assert "step 30: n2 waits in allreduce for its fault; n0 n1 n3 are inside the same collective" in lines
    assert "restart 1: n2 lost: spare; rank 2 is now on n4" in lines
    assert "restart 1: 4 ranks now on n0 n1 n4 n3" in lines


def test_steps_after_a_restart_count_from_the_beginning_of_the_job() -> None:
    run = history.reference()
    events = tuple(
        dataclasses.replace(item, value={**item.value, "offset": 20}) if item.f == "rank.step" and item.epoch else item
        for item in run.history.events
    )
    assert "step 46: first step of restart 1 done on all ranks" in lines_of(run, History(events))


def test_a_clean_run_is_told_in_few_lines() -> None:
    assert [line.split(":")[0] for line in lines_of(history.clean())] == ["start", "finished"]


def test_ranks_that_leave_because_their_node_was_lost_are_not_told_as_losses() -> None:
    assert len([line for line in lines_of(history.reference()) if line.startswith("noticed")]) == 1


def test_a_fault_that_took_long_is_told_with_its_beginning() -> None:
    run = history.reference()
    injected = run.history.first("fault.injected")
    assert injected is not None
    slow = history.changed(run, "fault.injected", value={"began": injected.at.mono - 0.3})
    assert f"FAULT: crash-node on n2; began at {injected.t - 0.3:.3f}" in lines_of(slow)
    quick = history.changed(run, "fault.injected", value={"began": injected.at.mono - 0.003})
    assert "FAULT: crash-node on n2" in lines_of(quick)


def test_a_sweep_says_what_it_does_how_long_and_what_is_left() -> None:
    run = history.clean()
    cases = tuple(
        CaseFacts(case=number, operation="all-reduce", algorithm="ring", bytes=4096, iterations=20, cost=None)
        for number in range(4)
    )
    events = [
        (0.0, LinkProbing(rank=0, directions=12, limit_s=3.0, known=True)),
        (4.0, CollectivePlan(rank=0, cases=cases, expected_s=10.0, uncosted=0, cases_s=(1.0, 1.0, 4.0, 4.0))),
        *(
            (t, CollectiveMeasured(rank=0, case=number, iterations=20, median_s=0.01, low_s=None, high_s=None))
            for number, t in enumerate((5.0, 8.0, 14.0, 20.0))
        ),
    ]
    first = run.history.events[0]
    measured = History(tuple(replace(event(data, at=first.at, source=first.source), t=t) for t, data in events))
    lines = lines_of(run, measured)
    assert (
        lines[0]
        == "links: probing links: 12 directions, about 3 s, longer on a busy machine; that of an earlier run is confirmed first"
    )
    assert lines[1] == "expected: 80 iterations of 4 cases, about 10 s by the cost model with verification"
    assert [line.partition("iterations")[2] for line in lines[2:]] == ["", " · 2 cases left, about 16 s", "", ""]


def test_a_probe_is_shown_as_soon_as_it_ends() -> None:
    run = history.clean()
    first = run.history.events[0]
    figure = ProbeFigure(name="gemm float32", unit="TFLOP/s", better="higher", values=(0.0, "nan", 0.3, 0.2))
    probed = [
        event(ProbeDone(rank=1, probe="gemm", figures=(figure,)), at=first.at, source=first.source, node="n1"),
        event(ProbeDone(rank=1, probe="disk", error="no space"), at=first.at, source=first.source, node="n1"),
    ]
    run_lines = RunLines(trial=run.trial, slots=("n0", "n1", "n2", "n3"))
    lines = [line for item in probed for line in run_lines.feed(item)]
    assert [(line.text, line.passing) for line in lines] == [
        ("gemm on n1: gemm float32 0.2 TFLOP/s", True),
        ("disk on n1: no space", True),
    ]


def test_a_replacement_is_not_called_back_and_a_bed_that_is_not_restored_not_as_up_left_it() -> None:
    run = history.reference()
    assert summary_lines._healed(run.history) == "n2 back and ready; the bed is as `up` left it"
    broken = history.changed(run, "run.end", value={"kind": "infrastructure"})
    assert summary_lines._healed(broken.history) == "n2 back and ready"
    begin = run.history.events[0].value["nodes"]
    started = history.changed(run, "run.begin", value={"nodes": {**begin, "n2": {**begin["n2"], "incarnation": ""}}})
    assert summary_lines._healed(started.history) == "the bed is as `up` left it"


def test_a_probe_says_how_many_are_left_and_for_how_long() -> None:
    run = history.clean()
    first = run.history.events[0]
    joined = replace(event(GangJoined(), at=first.at, source=first.source, epoch=0), t=1.0)
    probed = [
        replace(
            event(ProbeDone(rank=rank, probe="gemm", error="no space"), at=first.at, source=first.source),
            t=3.0 + 2 * rank,
        )
        for rank in range(4)
    ]
    trial = replace(run.trial, params={"probes": ("gemm",)})
    run_lines = RunLines(trial=trial, slots=("n0", "n1", "n2", "n3"))
    run_lines.feed(joined)
    lines = [line.text.partition("no space")[2] for item in probed for line in run_lines.feed(item)]
    assert lines == [" · 1 of 4, about 6 s left", " · 2 of 4, about 4 s left", " · 3 of 4, about 2 s left", ""]


def test_what_cannot_be_judged_is_said_once_while_the_job_begins() -> None:
    run = history.clean()
    unread = [RankUnobserved(rank=rank, what="RNG", why="of cupy: its state is not read") for rank in range(4)]
    first = run.history.events[0]
    events = [event(data, at=first.at, source=first.source, epoch=epoch) for epoch in (0, 1) for data in unread]
    assert lines_of(run, History(tuple(events))) == ["note: cannot be judged: RNG (of cupy: its state is not read)"]


def test_ranks_without_a_step_are_named_once_others_have_made_many() -> None:
    def lines(stepping: tuple[int, ...], newest: int, epoch: int = 0, after_s: float = 10.0) -> list[str]:
        first = [(1.0, RankStep(rank=rank, step=1, mark="first")) for rank in stepping]
        later = [(1.0 + after_s, RankStep(rank=0, step=newest + more, mark="newest")) for more in (0, 9)]
        run = history.clean()
        at, source = run.history.events[0].at, run.history.events[0].source
        made = [replace(event(data, at=at, source=source, epoch=epoch), t=t) for t, data in [*first, *later]]
        return lines_of(run, History(tuple(made)))

    assert lines((0, 1), 16) == ["note: cannot be judged: ranks 2 3 (no step yet, while others have made 16)"]
    assert lines((0, 1, 2, 3), 16) == lines((0, 1), 6) == lines((0, 1), 16, epoch=1) == []
    assert lines((0, 1), 1600, after_s=9.0) == [], "their first steps may be on their way"


def test_a_drill_of_long_steps_is_told_once_how_to_be_short() -> None:
    def lines(step_s: float, epoch: int = 0, **params: object) -> list[str]:
        first = [(2.0, RankStep(rank=rank, step=1, mark="first")) for rank in range(4)]
        later = [(2.0 + step_s * done, RankStep(rank=0, step=1 + done, mark="newest")) for done in (1, 2, 3, 50)]
        trial = replace(
            history.trial(FaultPlan(id="f0", fault="crash-node", node=2, at=Trigger(step=1)), workload="script")
        )
        run = replace(history.clean(), trial=replace(trial, params=params))
        at, source = run.history.events[0].at, run.history.events[0].source
        made = [replace(event(data, at=at, source=source, epoch=epoch), t=t) for t, data in [*first, *later]]
        return lines_of(run, History(tuple(made)))

    assert lines(2.5) == [
        "note: a step takes 2.5 s, so 120 steps take 5 min; a shorter drill: --budget 5m, --no-reference, or fewer steps"
    ]
    assert lines(0.5) == lines(2.5, stop_at="5m") == []
    assert not any("a step takes" in line for line in lines(2.5, epoch=1))


def test_a_rank_that_was_killed_for_memory_is_detected_with_the_reason() -> None:
    def lines(code: int) -> list[str]:
        run = history.clean()
        at, source = run.history.events[0].at, run.history.events[0].source
        ended = RankExit(rank=1, pid=7, code=code, last_step=None, error="out of memory: the kernel killed it")
        return lines_of(run, History((event(ended, at=at, source=source, epoch=0, node="n1"),)))

    assert lines(-9) == ["noticed: rank 1 on n1 exited, code -9 (out of memory: the kernel killed it)"]
    assert lines(1) == ["noticed: rank 1 on n1 exited, code 1"]
