"""A measurement stops when its median is known: the interval, when it is computed, and what the checks accept."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.schedule import Cost
from orchestrator.rank.collective import cases, expected_cost, link_fit, precision, settings
from orchestrator.views import omitted_steps
from orchestrator.views.collectives import measured, phrases, statistics
from orchestrator.workloads import collective, emulate

from . import collective_runs, simulated, verdicts


@pytest.mark.parametrize("count", [1, 2, 5, 6, 12, 19, 40, 100, 1999])
def test_the_interval_is_the_one_of_the_views(count: int) -> None:
    numpy = pytest.importorskip("numpy")
    samples = [random.Random(count).lognormvariate(0, 1) for _ in range(count)]
    own, theirs = precision.median(samples), statistics.median(numpy.array(samples))
    assert own.value == pytest.approx(theirs.value)
    low, high = (own.low, own.high) if own.low is not None else (-numpy.inf, numpy.inf)
    assert (low, high) == (theirs.low, theirs.high)


def test_the_interval_of_many_samples_is_nearly_the_exact_one() -> None:
    assert abs(precision._enclosing(2001) - precision._enclosing(2000)) <= 2


def test_the_true_median_is_within_the_interval_in_95_of_100_stopped_cases() -> None:
    """With the checks of a real run: stopping at one of them may not cost more than a few hundredths."""
    generator, hits, trials = random.Random(3), 0, 600
    for _ in range(trials):
        samples: list[float] = []
        stops = [*sorted(precision.check_counts(200)), 200]
        for stop in stops:
            samples += [generator.lognormvariate(0, 0.05) for _ in range(stop - len(samples))]
            interval = precision.median(samples)
            if interval.is_within(0.03):
                break
        assert interval.low is not None and interval.high is not None
        hits += interval.low <= 1.0 <= interval.high
    assert hits >= 0.91 * trials


def test_too_few_samples_never_stop_a_case() -> None:
    assert not precision.median([1.0] * 5).is_within(0.5)
    assert precision.median([1.0] * 6).is_within(0.5)
    assert min(precision.check_counts(1000)) == precision.LEAST and not precision.check_counts(precision.LEAST)


def test_cases_in_turn_stop_together() -> None:
    narrow, wide = precision.median([1.0] * 20), precision.median([float(n) for n in range(20)])
    assert precision.is_reached([narrow, narrow], 0.02) and not precision.is_reached([narrow, wide], 0.02)


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), (" 1.5 % ", 0.015), ("", 0.0)])
def test_a_precision_is_a_share(text: str, share: float) -> None:
    assert precision.parse(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["two", "100%", "-1%", "nan"])
def test_a_wrong_precision_is_refused(text: str) -> None:
    (problem,) = settings.problems(settings.Measuring(precision=text), auto=False)
    assert problem.startswith("precision: must be ")


def test_a_precision_needs_iterations_and_no_gaps() -> None:
    assert collective.check(collective.Params(precision="2%", iterations=8)) == [
        "precision: needs iterations of at least 12 (got 8)"
    ]
    item = {"operation": "all-reduce", "bytes": 4096, "gap_ms": 1.0}
    assert emulate.check(emulate.Params(items=(item,), precision="2%")) == [
        "precision: not with gaps: a sequence runs all of its iterations"
    ]


def test_the_user_learns_how_many_iterations_are_needed() -> None:
    few = collective.Params(algorithm=("ring", "library"), sizes=("4K", "8K"), iterations=5)
    assert list(collective.notes(few)) == [
        "the fastest algorithm of a size is judged from 7 iterations on; with 5 it is not judged: --iterations 7"
    ]
    assert list(collective.notes(collective.Params())) == []


def test_the_expected_time_counts_warm_up_checks_and_gaps() -> None:
    (case,) = cases.cases([cases.Item(operation="all-reduce", bytes=1000, trials=10, gap_ms=5.0)], 4)
    cost, link = Cost(6, 1.5), link_fit.Fit(0.0001, 1e-6)
    overhead = expected_cost.Overhead(warmup=2, barrier_s=0.0001, drain_s=0.001, check_s_per_byte=1e-6)
    expected = expected_cost.duration([case], [cost], link, overhead)
    iteration_s = 6 * 0.0001 + 1.5e-3 + 2 * 0.0001 + 0.001 + 1e-3
    assert expected.seconds == pytest.approx(12 * iteration_s + 0.05) and expected.uncosted == 0
    assert expected.by_case == (expected.seconds,)
    assert expected_cost.duration([case], [None], link, overhead).uncosted == 1
    assert expected_cost.duration([case], [cost], None, overhead).seconds is None


def stopped(
    iterations: int = 20, *, low_s: float = 0.0099, share: float | None = 0.05, reason: str = "precision"
) -> Run:
    """Two algorithms in turn, of whose 30 planned iterations so many were done."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm=name, bytes=65536, iterations=iterations,
            gang=simulated.Gang(schedules=simulated.ring(4, 65536)),
        )
        for name in ("ring", "library")
    ]  # fmt: skip
    stop = {"iterations": iterations, "median_s": 0.01, "low_s": low_s, "high_s": 0.0101, "reason": reason}
    run = collective_runs.run(parts, notes=[("collective.measured", {"case": case, **stop}) for case in (0, 1)])

    def planned(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "precision": share, "cases": [{**case, "iterations": 30} for case in value["cases"]]}

    events = tuple(
        dataclasses.replace(event, value=planned(dict(event.value))) if event.f == "collective.plan" else event
        for event in run.history.events
    )
    plan = {**dict(run.extras["plan.json"]), "last_step": 60}
    return dataclasses.replace(run, history=History(events), extras={**run.extras, "plan.json": plan})


def test_a_recorded_stop_is_accepted() -> None:
    run = stopped()
    assert omitted_steps(run.history) == frozenset(range(41, 61))
    verdict = verdicts.ask(run, "no-step-lost")
    assert verdict.outcome == "pass" and verdict.text.endswith("without 20 that the precision made unnecessary")
    entry = measured(run)
    assert entry is not None and [row.lost for row in entry.rows] == [0, 0]
    assert phrases.stops(entry).startswith("2 of 2 cases stopped after 20 of 30 iterations: ")


@pytest.mark.parametrize("wrong", [{"share": None}, {"low_s": 0.009}, {"reason": "all"}])
def test_a_stop_without_a_precision_or_with_a_wide_interval_is_not_accepted(wrong: dict[str, Any]) -> None:
    run = stopped(**wrong)
    assert omitted_steps(run.history) == frozenset()
    assert verdicts.ask(run, "no-step-lost").outcome == "fail"


def test_steps_that_are_lost_before_a_stop_are_found() -> None:
    run = stopped()
    records = tuple(record for record in run.files.steps() if record.step != 7)
    assert isinstance(run.files, collective_runs.Files)
    lacking = dataclasses.replace(run, files=collective_runs.Files(records, run.files.blocks))
    assert verdicts.ask(lacking, "no-step-lost").outcome == "fail"
