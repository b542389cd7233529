"""A measurement stops when its median is known: the interval, when it is computed, and what the checks accept."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from orchestrator.collectives.plugins.workloads import collective, emulate
from orchestrator.collectives.rank import expected_cost, link_fit, measuring
from orchestrator.collectives.views import measured, phrases
from orchestrator.model import ratio
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.schedule import Cost
from orchestrator.rank.exchange import cases
from orchestrator.views import omitted_steps, statistics

from .. import simulated, verdicts
from . import collective_runs


def test_the_median_of_an_interval_is_the_one_of_the_table() -> None:
    """By nearest rank: of two middle samples the lower one."""
    numpy = pytest.importorskip("numpy")
    for count in (3, 6, 20, 41):
        samples = [random.Random(count).lognormvariate(0, 1) for _ in range(count)]
        own, table = ratio.median(samples), statistics.spread(numpy.array(samples))
        assert own is not None and table is not None and own.value == table.p50
        assert 0 < own.low <= own.value <= own.high


@pytest.mark.slow
def test_the_true_median_is_within_the_interval_in_95_of_100_stopped_cases() -> None:
    """With the checks of a real run: stopping at one of them may not cost more than a few hundredths."""
    generator, hits, trials = random.Random(3), 0, 600
    for _ in range(trials):
        samples: list[float] = []
        stops = [*sorted(measuring.check_counts(200)), 200]
        for stop in stops:
            samples += [generator.lognormvariate(0, 0.05) for _ in range(stop - len(samples))]
            interval = ratio.median(samples)
            assert interval is not None
            if measuring.is_within(interval, 0.03):
                break
        assert interval is not None
        hits += interval.low <= 1.0 <= interval.high
    assert hits >= 0.91 * trials


def test_too_few_samples_never_stop_a_case() -> None:
    assert not measuring.is_within(ratio.median([1.0] * 2), 0.5)
    assert measuring.is_within(ratio.median([1.0] * 3), 0.5)
    assert min(measuring.check_counts(1000)) == measuring.LEAST and not measuring.check_counts(measuring.LEAST)


def test_cases_in_turn_stop_together() -> None:
    narrow, wide = ratio.median([1.0] * 20), ratio.median([float(n) for n in range(1, 21)])
    assert measuring.is_reached([narrow, narrow], 0.02) and not measuring.is_reached([narrow, wide], 0.02)


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), (" 1.5 % ", 0.015), ("", 0.0)])
def test_a_precision_is_a_share(text: str, share: float) -> None:
    assert measuring.parse(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["two", "100%", "-1%", "nan"])
def test_a_wrong_precision_is_refused(text: str) -> None:
    (problem,) = measuring.problems(measuring.Measuring(precision=text), auto=False)
    assert problem.startswith("precision: must be ")


def test_a_precision_needs_no_gaps() -> None:
    assert collective.check(collective.Params(precision="2%", iterations=8)) == []
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
    iterations: int = 20,
    *,
    low_s: float = 0.0099,
    share: float | None = 0.05,
    reason: str = "precision",
    seconds: float = 1.0,
) -> Run:
    """Two algorithms in turn, of whose 30 planned iterations so many were done."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm=name, bytes=65536, iterations=iterations,
            gang=simulated.Gang(schedules=simulated.ring(4, 65536)),
        )
        for name in ("ring", "library")
    ]  # fmt: skip
    stop = {
        "iterations": iterations,
        "median_s": 0.01,
        "low_s": low_s,
        "high_s": 0.0101,
        "reason": reason,
        "seconds": seconds,
    }
    run = collective_runs.run(parts, notes=[("collective.measured", {"case": case, **stop}) for case in (0, 1)])

    def planned(value: dict[str, Any]) -> dict[str, Any]:
        return {
            **value,
            "precision": share,
            "precision_s": 3.0,
            "cases": [{**case, "iterations": 30} for case in value["cases"]],
        }

    events = tuple(
        dataclasses.replace(event, value=planned(dict(event.value)))
        if event.f == "collective.plan"
        else dataclasses.replace(event, t=event.t + 10)
        if event.f == "collective.measured"
        else event
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
    assert phrases.stops(entry) == "2 of 2 cases known to 5 % after 20 iterations"


def test_a_precision_raises_the_iterations() -> None:
    wide = collective.Params(precision="2%", iterations=20)
    assert {item.trials for item in collective.items(wide)} == {2000} and collective.last_step(wide) == 2000
    assert {item.trials for item in collective.items(dataclasses.replace(wide, precision=""))} == {20}
    item = {"operation": "all-reduce", "bytes": 4096, "trials": 8}
    assert emulate.items(emulate.Params(items=(item,), precision="2%"))[0].trials == 800


def test_a_precision_that_its_time_did_not_reach_is_said_and_its_steps_are_not_lost() -> None:
    run = stopped(low_s=0.004, reason="time", seconds=3.0)
    assert omitted_steps(run.history) == frozenset(range(41, 61))
    assert verdicts.ask(run, "no-step-lost").outcome == "pass"
    entry = measured(run)
    assert entry is not None
    assert phrases.stops(entry) == (
        "0 of 2 cases known to 5 %; not reached in 3 s a size (--precision-s): "
        "all-reduce ring 64 KiB to 61 % after 20, all-reduce library 64 KiB to 61 % after 20"
    )


@pytest.mark.parametrize("seconds", [2.9, 1000.0])
def test_a_stop_that_is_too_early_for_its_time_is_not_accepted(seconds: float) -> None:
    """Before the limit, or with more seconds than have passed since the plan."""
    run = stopped(low_s=0.004, reason="time", seconds=seconds)
    assert omitted_steps(run.history) == frozenset()
    assert verdicts.ask(run, "no-step-lost").outcome == "fail"


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
