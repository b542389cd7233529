"""Every checker with a limit passes at it and below it, and fails above it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import views
from orchestrator.checkers import spare_warm
from orchestrator.collectives import views as collectives
from orchestrator.collectives.plugins.checkers import times_possible
from orchestrator.model import events
from orchestrator.model.event import Event
from orchestrator.model.run import Run, StepRecord
from orchestrator.model.trial import Recovery

from . import history
from .collectives.test_collective_bounds import MIB, measured, ran, retimed
from .verdicts import ask

#: Seconds: less than any rounding to milliseconds, more than the error of a sum of floats.
EPSILON = 1e-7
#: (difference to the limit, outcome) of a limit that may be reached and not exceeded.
UP_TO = pytest.mark.parametrize(
    ("difference", "outcome"), [(-EPSILON, "pass"), (0.0, "pass"), (EPSILON, "fail")], ids=["below", "at", "above"]
)
#: The same of a count.
COUNTED = pytest.mark.parametrize(
    ("difference", "outcome"), [(-1, "fail"), (0, "pass"), (1, "fail")], ids=["below", "at", "above"]
)


def index_of(run: Run, f: str, type: str, node: str | None = None) -> int:
    """Which of the events called ``f`` is the first of this type (and node)."""
    named = [event for event in run.history.events if event.f == f]
    return next(n for n, e in enumerate(named) if e.type == type and node in (None, e.node))


def without_recovery() -> Run:
    """A crash that is detected, after which the run ends."""
    fault = history.crash_at(30)
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.crash(fault)
    bed.ctl("run.end", {"outcome": "failed", "reason": "lost n2; the recovery policy is none", "kind": "finding"})
    return bed.run()


# --- detected-within, recovered-within ----------------------------------------------------------------------------------


@UP_TO
def test_detection_that_a_recovery_follows(difference: float, outcome: str) -> None:
    run = history.reference()
    (failover,) = views.failovers(run.trial, run.history)
    assert failover.detect_s is not None and failover.detect_s > 2 * EPSILON
    assert ask(run, "detected-within", seconds=failover.detect_s - difference).outcome == outcome


@UP_TO
def test_detection_that_no_recovery_follows(difference: float, outcome: str) -> None:
    run = without_recovery()
    (seconds,) = between(run, "fault.injected", "node.exit")
    assert ask(run, "detected-within", seconds=seconds - difference).outcome == outcome


def between(run: Run, first: str, last: str) -> tuple[float]:
    at = views.clocks(run.history).at
    begin, end = run.history.first(first), run.history.first(last)
    assert begin is not None and end is not None
    return (at(end) - at(begin),)


@pytest.mark.parametrize("make", [history.reference, without_recovery], ids=["recovered", "not recovered"])
def test_the_default_limit_of_a_detection_is_two_seconds(make: Callable[[], Run]) -> None:
    """The exit of the node, and all that follows, happens later."""
    run = make()
    exit_ = run.history.first("node.exit")
    injected = run.history.first("fault.injected")
    assert exit_ is not None and injected is not None
    for late, outcome in ((2.0 - EPSILON, "pass"), (2.0 + EPSILON, "fail")):
        delay = late - (exit_.at.mono - injected.at.mono)
        assert ask(delayed(run, exit_.seq, delay), "detected-within").outcome == outcome


def delayed(run: Run, seq: int, seconds: float) -> Run:
    """The run in which this event and all later ones happen so many seconds later."""

    def later(event: Event) -> Event:
        at = dataclasses.replace(event.at, mono=event.at.mono + seconds, wall=event.at.wall + seconds)
        return dataclasses.replace(event, at=at, t=event.t + seconds)

    return history.with_events(run, [later(event) if event.seq >= seq else event for event in run.history.events])


@pytest.mark.parametrize(
    ("difference", "outcome"),
    [(-0.0203, "pass"), (-0.0201, "unknown"), (0.0, "unknown"), (0.0201, "unknown"), (0.0203, "fail")],
)
def test_a_detection_nearer_to_the_limit_than_the_clocks_are_certain_is_unknown(
    difference: float, outcome: str
) -> None:
    """The clock of the keeper's host is known to 10 ms at each of both events; its drift since preflight adds 0.16 ms."""
    run = history.reference()
    exit_ = run.history.first("node.exit")
    assert exit_ is not None
    run = on_another_boot(delayed(run, exit_.seq, 1.0), uncertainty_s=0.01)
    (failover,) = views.failovers(run.trial, run.history)
    assert failover.detect_s is not None
    assert ask(run, "detected-within", seconds=failover.detect_s - difference).outcome == outcome


def on_another_boot(run: Run, uncertainty_s: float) -> Run:
    """The keeper's events come from a host whose clock agrees with the controller's."""
    begin = run.history.events[0]
    value = {**begin.value, "clocks": {"b": {"host": "h1", "offset_s": 0.0, "uncertainty_s": uncertainty_s}}}
    return history.with_events(run, [dataclasses.replace(begin, value=value), *map(_of_boot_b, run.history.events[1:])])


def _of_boot_b(event: Event) -> Event:
    if event.source.writer != "keeper":
        return event
    return dataclasses.replace(event, at=dataclasses.replace(event.at, boot="b", mono=event.at.mono))


@UP_TO
def test_time_to_recover(difference: float, outcome: str) -> None:
    run = history.reference()
    (failover,) = views.failovers(run.trial, run.history)
    assert failover.ttr_s is not None and failover.ttr_s > 2 * EPSILON
    assert ask(run, "recovered-within", seconds=failover.ttr_s - difference).outcome == outcome


def test_the_slowest_of_several_recoveries_counts() -> None:
    run = history.twice()
    times = [failover.ttr_s or 0.0 for failover in views.failovers(run.trial, run.history)]
    assert len(times) == 2 and times[0] != times[1]
    assert ask(run, "recovered-within", seconds=max(times)).outcome == "pass"
    assert ask(run, "recovered-within", seconds=sum(times) / 2).outcome == "fail"


def test_the_default_limit_of_a_recovery_is_ten_seconds() -> None:
    run = history.reference()
    (failover,) = views.failovers(run.trial, run.history)
    assert failover.ttr_s is not None
    last = max(point.seq for point in failover.milestones)
    for ttr_s, outcome in ((10.0 - EPSILON, "pass"), (10.0 + EPSILON, "fail")):
        assert ask(delayed(run, last, ttr_s - failover.ttr_s), "recovered-within").outcome == outcome


# --- no-hang ------------------------------------------------------------------------------------------------------------


def answered_after(run: Run) -> tuple[Run, float]:
    """(the run, the seconds that its first store.open took)."""
    operation = views.operations(run.history, events.StoreOpen)[0]
    assert operation.outcome is not None
    at = views.clocks(run.history).at
    return run, at(operation.outcome) - at(operation.invoke)


@UP_TO
def test_deadline_of_a_command(difference: float, outcome: str) -> None:
    run, took_s = answered_after(history.clean())
    run = history.changed(run, "store.open", 0, value={"deadline_s": took_s - difference})
    assert ask(run, "no-hang", slack_s=0.0).outcome == outcome


@UP_TO
def test_slack_after_a_deadline(difference: float, outcome: str) -> None:
    run, took_s = answered_after(history.clean())
    run = history.changed(run, "store.open", 0, value={"deadline_s": took_s / 2})
    assert ask(run, "no-hang", slack_s=took_s / 2 - difference).outcome == outcome


def test_the_default_slack_is_one_second() -> None:
    run, took_s = answered_after(history.clean())
    for difference, outcome in ((EPSILON, "pass"), (-EPSILON, "fail")):
        late = history.changed(run, "store.open", 0, value={"deadline_s": took_s - 1.0 + difference})
        assert ask(late, "no-hang").outcome == outcome


@pytest.mark.parametrize(("late_s", "outcome"), [(0.25, "fail"), (0.5 - EPSILON, "fail"), (0.5 + EPSILON, "pass")])
def test_time_in_which_the_controller_slept_does_not_count(late_s: float, outcome: str) -> None:
    run = history.clean()
    answer = views.operations(run.history, events.StoreOpen)[0].outcome
    assert answer is not None
    run, took_s = answered_after(delayed(run, answer.seq, 0.5))
    run = history.changed(run, "store.open", 0, value={"deadline_s": took_s - 0.5})
    written = list(run.history.events)
    note = dataclasses.replace(answer, type="note", f="controller.late", key=None, value={"late_s": late_s})
    written.insert(answer.seq - 1, note)
    assert ask(history.with_events(run, written), "no-hang", slack_s=0.0).outcome == outcome


# --- counts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "outcome"), [(1, "fail"), (2, "pass"), (3, "pass")])
def test_number_of_recoveries(allowed: int, outcome: str) -> None:
    run = history.twice()
    trial = dataclasses.replace(run.trial, recovery=Recovery(max_restarts=allowed))
    assert ask(dataclasses.replace(run, trial=trial), "membership").outcome == outcome


@COUNTED
def test_last_step_of_a_training(difference: int, outcome: str) -> None:
    run = history.clean()
    plan = {**run.extras["plan.json"], "last_step": 60 + difference}
    run = dataclasses.replace(run, extras={**run.extras, "plan.json": plan})
    assert ask(run, "finished").outcome == outcome
    assert ask(run, "no-step-lost").outcome == outcome


@COUNTED
def test_bytes_of_a_step(difference: int, outcome: str) -> None:
    run = history.clean()
    traffic = next(event for event in run.history.events if event.f == "traffic")
    measured = {"all-reduce": traffic.value["measured"]["all-reduce"] + difference}
    assert (
        ask(history.changed(run, "traffic", 2, value={"measured": measured}), "traffic-as-predicted").outcome == outcome
    )


@COUNTED
def test_first_step_after_a_restore(difference: int, outcome: str) -> None:
    run = history.changed(history.reference(), "rank.restored", -1, value={"step": 25 + difference})
    assert ask(run, "same-resume-step").outcome == outcome


@pytest.mark.parametrize("missing", spare_warm.WARM)
def test_every_module_of_a_warm_spare_must_be_imported(missing: str) -> None:
    run = history.reference()
    preloaded = [name for name in spare_warm.WARM if name != missing]
    start = [event.node for event in run.history.of("rank.start")].index("n4")
    assert ask(run, "spare-warm").outcome == "pass"
    assert (
        ask(history.changed(run, "rank.start", start, value={"preloaded": preloaded}), "spare-warm").outcome == "fail"
    )


# --- tolerances ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "outcome"),
    [(0.001 - EPSILON, "pass"), (0.001, "pass"), (0.001 + EPSILON, "fail"), (float("nan"), "fail")],
)
def test_difference_to_the_reference(difference: float, outcome: str) -> None:
    run = history.changed(history.clean(), "reference.compared", value={"difference": difference})
    assert ask(run, "equals-reference").outcome == outcome
    assert ask(run, "equals-reference", tolerance=difference / 2).outcome == "fail"


def with_one_iteration_of(seconds: float) -> Run:
    """A run in which every rank took so many seconds for iteration 3."""

    run = ran()
    start = min(record.start for record in run.files.steps() if record.step == 3)

    def change(record: StepRecord) -> dict[str, Any]:
        return {"start": start, "end": start + seconds} if record.step == 3 else {}

    return retimed(run, change)


def least_time() -> float:
    """Seconds that the bytes of the case need on the busiest link."""
    setting = measured(ran()).setting
    bound = collectives.lower_bound(setting, setting.cases[0])
    assert bound is not None and bound.payload > MIB
    return bound.seconds


@pytest.mark.parametrize(("difference", "outcome"), [(-EPSILON, "fail"), (EPSILON, "pass")], ids=["below", "above"])
def test_least_time_of_an_iteration(difference: float, outcome: str) -> None:
    """The bound itself less a thousandth: rates and clocks are exact to this part."""
    assert times_possible.TOLERANCE == 0.001
    run = with_one_iteration_of(least_time() * 0.999 + difference)
    assert ask(run, "times-possible").outcome == outcome


@pytest.mark.parametrize(("missing_s", "outcome"), [(0.0099, "pass"), (0.0102, "fail")])
def test_least_time_where_two_clocks_are_uncertain(missing_s: float, outcome: str) -> None:
    """Each of three clocks is known to 5 ms; the two most uncertain ones count.

    The drift since preflight, here 0.14 ms, counts as well.
    """
    run = with_one_iteration_of(least_time() * 0.999 - missing_s)
    clocks = {
        f"boot{rank}": {"host": f"h{rank}", "offset_s": rank * 1e-6, "uncertainty_s": 0.005 if rank < 3 else 0.0}
        for rank in range(4)
    }
    plan = {
        **run.extras["plan.json"],
        "clocks": clocks,
        "nodes": {f"n{rank}": {"host": f"h{rank}"} for rank in range(4)},
    }
    run = dataclasses.replace(run, extras={**run.extras, "plan.json": plan})
    assert ask(run, "times-possible").outcome == outcome
