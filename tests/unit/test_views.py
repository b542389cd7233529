"""The views read a run's milestones, failovers, faults and time line from its history."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from orchestrator import views
from orchestrator.model.event import Clock
from orchestrator.reports.page import node_timeline, page_tables

from . import history


def test_a_failover_is_read_with_every_milestone_and_phases_that_sum_to_the_ttr() -> None:
    run = history.reference()
    (record,) = views.failovers(run.trial, run.history, run.files.steps())
    assert [point.name for point in record.milestones] == list(views.MILESTONES)
    assert [name for name, _ in record.phases] == list(views.PHASES)
    assert sum(seconds for _, seconds in record.phases) == pytest.approx(record.ttr_s)
    assert (record.lost, record.detector, record.fault) == (("n2",), "node.exit", "f0")
    assert (record.resume_step, record.newest_step, record.lost_steps) == (25, 25, (26, 27, 28, 29))
    assert record.slots == ("n0", "n1", "n4", "n3")
    assert record.policies == {"n2": "spare"}


def test_the_nodes_that_exited_or_fell_silent_are_lost_nodes() -> None:
    assert [views.view(run.trial, run.history).lost for run in (history.clean(), history.reference(), history.paused())] == [
        (), ("n2",), ("n1",),
    ]  # fmt: skip


def test_caught_up_is_the_first_step_beyond_the_last_before_the_fault() -> None:
    run = history.reference()
    (record,) = views.failovers(run.trial, run.history, run.files.steps())
    ends = [r.end for r in run.files.steps() if r.epoch == 1 and r.step == 30]
    assert record.caught_up_s == pytest.approx(max(ends) - history.START - record.milestones[0].t)
    assert record.ttr_s is not None
    assert record.caught_up_s is not None
    assert record.caught_up_s > record.ttr_s


def test_detection_is_measured_from_the_return_of_the_injecting_call() -> None:
    run = history.reference()
    exit_, injected = run.history.first("node.exit"), run.history.first("fault.injected")
    assert exit_ is not None and injected is not None
    run = history.changed(run, "fault.injected", value={"began": injected.at.mono - 0.004})
    (slow_iteration,) = views.failovers(run.trial, run.history)
    assert slow_iteration.detect_s == pytest.approx(exit_.t - injected.t)
    assert slow_iteration.ttr_s == pytest.approx(sum(seconds for _, seconds in slow_iteration.phases))
    (fault,) = views.faults(run.trial, run.history)
    assert fault.began == pytest.approx(injected.t - 0.004)
    assert fault.stages["injected"] == pytest.approx(injected.t)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_slow_call_broke_is_detected_after_it_began_though_before_it_returned(recorded: bool) -> None:
    """As ``stop-engine``: the containers die, recovery is decided, and only then does the call return."""
    run = history.reference()
    events = list(run.history.events)
    late = [e for e in events if e.f in ("fault.injected", "fault.verified") or (e.f == "fault.act" and e.type == "ok")]
    requested = next(e for e in events if e.f == "fault.act" and e.type == "invoke")
    decided = next(e for e in events if e.f == "recovery.decided")
    message = {"began": requested.at.mono + 0.002} if recorded else {}
    moved = [
        dataclasses.replace(
            e, t=decided.t + i / 1000, at=dataclasses.replace(e.at, mono=decided.at.mono + i / 1000), value={**e.value, **message}
        )
        for i, e in enumerate(late, start=1)
    ]  # fmt: skip
    rest = [e for e in events if e not in late]
    place = rest.index(decided) + 1
    run = history.with_events(run, [*rest[:place], *moved, *rest[place:]])
    (slow_iteration,) = views.failovers(run.trial, run.history)
    exit_ = run.history.first("node.exit")
    assert exit_ is not None
    assert slow_iteration.fault == "f0"
    assert slow_iteration.detect_s == pytest.approx(exit_.t - requested.t - (0.002 if recorded else 0.0))
    assert dict(slow_iteration.phases)["detect"] == pytest.approx(slow_iteration.detect_s)
    observed = views.view(run.trial, run.history)
    (mark,) = node_timeline.marks(observed)
    (band,) = node_timeline.bands(observed)
    assert mark.t == pytest.approx(band.start)


def test_a_node_that_left_no_code_is_gone_not_none() -> None:
    run = history.changed(history.reference(), "node.exit", value={"code": None})
    labels = {span.label for span in views.timeline(run.history) if span.kind == "dead"}
    assert labels == {"gone"}


def test_two_faults_in_a_row_are_two_failovers_each_with_its_own_fault_and_losses() -> None:
    run = history.twice()
    record, two = views.failovers(run.trial, run.history, run.files.steps())
    assert (record.fault, two.fault) == ("f0", "f1")
    assert (record.lost, two.lost) == (("n2",), ("n4",))
    assert (record.lost_steps, two.lost_steps) == ((26, 27, 28, 29), (41, 42))
    assert two.ttr_s is not None and two.ttr_s > 0


def test_a_recovery_that_did_not_come_back_has_no_ttr() -> None:
    bed = history.bed_at_fault()
    run = bed.run()
    cut = next(e.seq for e in run.history.events if e.f == "rank.joined" and e.epoch == 1)
    short = history.prefix(run, cut)
    (slow_iteration,) = views.failovers(short.trial, short.history)
    assert slow_iteration.ttr_s is None
    assert [point.name for point in slow_iteration.milestones][-1] == "store ready"


def test_without_a_planned_fault_a_failover_starts_at_its_detection() -> None:
    run = history.reference()
    keep = [e for e in run.history.events if not e.f.startswith(("fault.", "lease.", "heal."))]
    bare = history.with_events(run, keep)
    (slow_iteration,) = views.failovers(history.trial(), bare.history)
    assert slow_iteration.fault is None and slow_iteration.detect_s is None
    assert slow_iteration.milestones[0].t == slow_iteration.milestones[1].t
    assert slow_iteration.ttr_s is not None


def test_a_run_at_a_glance() -> None:
    run = history.reference()
    observed = views.view(run.trial, run.history, run.files.steps())
    assert (observed.outcome, observed.step, observed.steps, observed.epochs) == ("finished", 60, 60, 2)
    assert observed.slots == ("n0", "n1", "n4", "n3")
    assert observed.goodput is not None and 0.3 < observed.goodput < 1.0
    assert set(observed.faults[0].stages) == {"planned", "armed", "injected", "verified", "healed", "heal verified"}
    assert None not in observed.faults[0].stages.values()
    assert (observed.faults[0].node, observed.faults[0].rank) == ("n2", 2)


def test_a_run_that_goes_on_is_running() -> None:
    run = history.bed_at_fault().run()
    assert views.view(run.trial, run.history).outcome == "running"


def test_the_time_line_shows_the_held_rank_the_dead_node_and_the_spare() -> None:
    run = history.reference()
    spans = views.timeline(run.history)
    kinds = {node: [span.kind for span in spans if span.node == node] for node in ("n0", "n2", "n4")}
    assert kinds["n2"] == ["idle", "start", "run", "held", "dead", "idle"]
    assert kinds["n0"] == ["idle", "start", "run", "idle", "start", "run", "idle"]
    assert kinds["n4"][:3] == ["idle", "start", "run"]


def test_spans_of_a_node_follow_each_other_without_a_gap() -> None:
    spans = views.timeline(history.twice().history)
    for node in {span.node for span in spans}:
        own = [span for span in spans if span.node == node]
        assert all(entry.end == two.start for entry, two in itertools.pairwise(own))


def test_every_prefix_can_be_viewed() -> None:
    run = history.twice()
    for length in range(len(run.history.events) + 1):
        short = history.prefix(run, length)
        views.view(short.trial, short.history, run.files.steps())
        views.timeline(short.history)


def test_events_of_another_host_are_placed_by_their_arrival() -> None:
    run = history.clean()
    event = run.history.events[10]
    elsewhere = dataclasses.replace(event, at=Clock(boot="boot-b", mono=5.0, wall=5.0))
    assert views.clock(run.history)(elsewhere) == event.t


def test_a_detection_without_a_planned_fault_is_told_by_its_detector() -> None:
    assert page_tables.detected(None, "node.exit") == "by node.exit; the moment of the loss is not known"
    assert page_tables.detected(0.004, "node.exit") == "4.0 ms, by node.exit"
