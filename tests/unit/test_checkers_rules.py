"""Every rule of a checker has a run that breaks it: the verdict lists a finding with its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from orchestrator import views
from orchestrator.model.event import Event, Source
from orchestrator.model.run import Run
from orchestrator.model.trial import FaultPlan, Trigger

from . import history
from .test_checkers_limits import delayed, without_recovery
from .verdicts import ask


def findings(run: Run, name: str, **params: Any) -> str:
    """The outcome of a check and the texts of all its findings."""
    verdict = ask(run, name, **params)
    return "\n".join([verdict.outcome, *(item["text"] for item in verdict.evidence.get("findings", ()))])


def with_copy(run: Run, event: Event, after: int = 0, **changes: Any) -> Run:
    """The run with another event like this one, ``after`` so many events."""
    written = list(run.history.events)
    written.insert(event.seq + after, dataclasses.replace(event, **changes))
    return history.with_events(run, written)


def first(run: Run, f: str, type: str = "note", node: str | None = None, epoch: int | None = None) -> Event:
    return next(
        event
        for event in run.history.events
        if (event.f, event.type) == (f, type) and node in (None, event.node) and epoch in (None, event.epoch)
    )


def changed(run: Run, event: Event, value: Mapping[str, Any] | None = None, **fields: Any) -> Run:
    """The run in which this event is different."""
    if value is not None:
        fields["value"] = {**event.value, **value}
    written = [dataclasses.replace(e, **fields) if e.seq == event.seq else e for e in run.history.events]
    return history.with_events(run, written)


def moved(run: Run, event: Event, to: int) -> Run:
    """The run in which this event has the number ``to``."""
    written = [e for e in run.history.events if e.seq != event.seq]
    written.insert(to - 1, event)
    return history.with_events(run, written)


# --- detected-within, recovered-within ----------------------------------------------------------------------------------


def test_the_detector_is_demanded_also_where_no_recovery_follows() -> None:
    assert findings(without_recovery(), "detected-within", detector="node.exit").startswith("pass")
    assert "by node.exit, not by node.silent" in findings(without_recovery(), "detected-within", detector="node.silent")


def test_the_slowest_detection_and_recovery_are_shown() -> None:
    run = history.twice()
    run = delayed(run, first(run, "node.exit").seq, 0.5)
    failovers = views.failovers(run.trial, run.history)
    detected = max(failover.detect_s or 0.0 for failover in failovers)
    assert f"node.exit {detected * 1000:.1f} ms" in ask(run, "detected-within").text
    assert (
        f"back in {max(failover.ttr_s or 0.0 for failover in failovers) * 1000:.0f} ms"
        in ask(run, "recovered-within").text
    )


def test_an_attempt_that_the_next_loss_overtakes_needs_no_first_step() -> None:
    faults = history.crash_at(30, id="f0"), history.crash_at(30, id="f1")
    bed = history.Bed(trial=history.trial(*faults))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.crash(faults[0])
    bed.stop(lost=["n2"])
    bed.recover("n2", "spare", 25)
    bed.crash(faults[1])
    bed.stop(lost=["n4"])
    bed.recover("n4", "restart", 25)
    assert "restart 2 never completed its first step" not in findings(bed.run(), "recovered-within")
    bed.train(60)
    bed.finish(heal=["n2"])
    assert [failover.ttr_s is None for failover in views.failovers(bed.trial, bed.run().history)] == [True, False]
    assert findings(bed.run(), "recovered-within").startswith("pass")


# --- no-hang ------------------------------------------------------------------------------------------------------------


def late(run: Run, event: Event) -> Run:
    return changed(run, event, {"deadline_s": -2.0})


def test_a_command_that_a_resume_interrupted_is_not_late() -> None:
    clean = history.clean()
    run = delayed(clean, first(clean, "store.open", "ok").seq, 20.0)
    assert "store.open on n0 took 20.0 s of 10 s" in findings(run, "no-hang")
    invoke = first(run, "store.open", "invoke")
    resumed = with_copy(run, invoke, type="note", f="run.resumed", key=None, value={})
    assert "store.open" not in findings(resumed, "no-hang")


def test_a_release_waits_on_purpose() -> None:
    bed = history.Bed(trial=history.trial())
    bed.begin()
    bed.start()
    bed.do("agent", "rank.release", "f/f0/release", "n1", {"rank": 1, "hold": "f0"})
    bed.train(60)
    bed.finish()
    run = bed.run()
    assert findings(late(run, first(run, "rank.release", "invoke")), "no-hang").startswith("pass")


def test_a_node_that_was_started_again_must_respond_again() -> None:
    run = history.reference("restart")
    start = first(run, "gang.start", "invoke", node="n2", epoch=1)
    assert "gang.start on n2 took" in findings(late(run, start), "no-hang")


def test_a_run_that_reached_its_own_limit_hung() -> None:
    run = history.clean()
    over = changed(run, first(run, "timer", "info"), type="ok", value={})
    assert "the run was not finished after 3600 s" in findings(over, "no-hang")


@pytest.mark.parametrize(("disables", "is_hang"), [(["agent"], True), (["agent", "host"], False)])
def test_a_host_that_is_healed_does_not_bring_back_its_nodes(disables: list[str], is_hang: bool) -> None:
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.act(fault)
    bed.answer("keeper", "fault.act", "f/f0/act", "n1", {"verified": True})
    bed._heal(fault, [])
    bed.ask("gang.stop", "e0/stop/n1", "n1", {"epoch": 0, "dump": False})
    bed.ctl("gang.stop", {"reason": "no response"}, type="info", key="e0/stop/n1", node="n1", epoch=0)
    run = bed.run()
    for f in ("fault.act", "fault.heal"):
        event = first(run, f, "invoke")
        run = changed(run, event, {"act": {**event.value["act"], "disables": disables}})
    assert ("gang.stop on n1 had an unknown outcome: no response" in findings(run, "no-hang")) is is_hang


# --- membership ---------------------------------------------------------------------------------------------------------


def test_an_attempt_is_decided_once_and_prepared_after_that() -> None:
    run = history.reference()
    decided = first(run, "recovery.decided")
    assert "restart 1 was decided twice" in findings(with_copy(run, decided), "membership")
    fence = first(run, "fence.write", "invoke", epoch=1)
    assert "fence.write of restart 1 came before its decision" in findings(moved(run, fence, decided.seq), "membership")


@pytest.mark.parametrize(
    ("ranks", "text"), [([3, 0], "rank 0 of 4 was assigned 2 times"), ([], "rank 3 of 4 was assigned 0 times")]
)
def test_every_rank_is_assigned_to_one_node(ranks: list[int], text: str) -> None:
    run = history.clean()
    assert text in findings(changed(run, first(run, "gang.start", "invoke", node="n3"), {"ranks": ranks}), "membership")


def test_a_node_and_a_rank_start_once_per_attempt() -> None:
    run = history.clean()
    start = first(run, "gang.start", "invoke", node="n3")
    assert "2 worker groups were started on n3 in first start" in findings(
        with_copy(run, start, key="other"), "membership"
    )
    assert "rank.joined of rank 0 2 times" in findings(with_copy(run, first(run, "rank.joined")), "membership")


def test_an_incarnation_must_have_been_started() -> None:
    run = history.clean()
    joined = first(run, "rank.joined")
    stranger = dataclasses.replace(joined.source, incarnation="stranger")
    text = "rank.joined of n0 from an incarnation that was not started: stranger"
    assert text in findings(changed(run, joined, source=stranger), "membership")


# --- steps, replays -----------------------------------------------------------------------------------------------------


def test_steps_that_are_missing_doubled_or_out_of_order_are_each_found() -> None:
    run = history.clean()
    records = list(run.files.steps())
    rank_0 = [record for record in records if record.rank == 0]
    rest = [record for record in records if record.rank != 0]
    missing = findings(history.with_records(run, [*rank_0[1:], *rest]), "no-step-lost")
    assert "rank 0 never did step 1 (1 of 60 are missing)" in missing
    assert "rank 0 did step 2 of first start instead of 1" in missing
    twice = findings(history.with_records(run, [*rank_0[:5], rank_0[4], *rank_0[5:], *rest]), "no-step-lost")
    assert "rank 0 did step 5 2 times in first start" in twice
    assert "rank 0 did step 5 2 times on the kept lineage" in twice
    assert "rank 0 did step 5 of first start instead of 6" in twice


def test_lost_steps_without_a_second_record_are_unknown() -> None:
    """The view reads lost steps from gang.stop where it gets no records."""
    run = history.reference()
    once = [record for record in run.files.steps() if record.epoch == 1 or record.step <= 25]
    text = findings(history.with_records(run, once), "replay-equal")
    assert text == "unknown\n4 steps were done again, but no record shows both executions"


# --- checkpoints --------------------------------------------------------------------------------------------------------


def test_a_node_that_was_started_with_another_checkpoint_is_found() -> None:
    run = history.reference()
    start = first(run, "gang.start", "invoke", node="n3", epoch=1)
    resume = {**start.value["resume"], "step": 20}
    text = "restart 1: n3 was started with another checkpoint"
    assert text in findings(changed(run, start, {"resume": resume}), "same-resume-step")


def test_a_scanned_checkpoint_of_an_abandoned_lineage_is_found() -> None:
    run = history.twice()
    chosen, scan = first(run, "resume.chosen", epoch=2), first(run, "checkpoint.scan", "ok", epoch=2)
    facts = {"name": "e0-s28", "step": 28, "epoch": 0, "sha256": "0" * 64}
    run = changed(run, scan, {"newest": {**scan.value["newest"], **facts}})
    assert "e0-s28 belongs to a lineage that was abandoned" in findings(changed(run, chosen, facts), "resumed-newest")


def test_an_attempt_that_could_use_none_of_its_checkpoints_is_found() -> None:
    run = history.reference()
    chosen = first(run, "resume.chosen", epoch=1)
    run = changed(run, chosen, value={"step": 0})
    skipped: dict[str, Any] = {"f": "checkpoint.skipped", "key": None, "value": {"name": "e0-s25", "reason": "torn"}}
    text = "restart 1 began at step 0: none of 5 committed checkpoints could be used"
    assert text in findings(with_copy(run, chosen, **skipped), "bit-exact")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"faults": 1}, "the reference run 9d12 had 1 fault"),
        ({"restarts": 2}, "had 2 restarts"),
        ({"steps": 0}, "did no step"),
    ],
)
def test_a_twin_that_was_interrupted_or_did_nothing_is_no_baseline(change: dict[str, int], text: str) -> None:
    run = dataclasses.replace(history.clean(), twin=history.twin(**change))
    assert text in findings(run, "baseline-clean")


# --- bundle, orphans ----------------------------------------------------------------------------------------------------


def test_step_records_come_from_the_node_of_their_rank() -> None:
    run = history.clean()
    records = [dataclasses.replace(r, node="n9") if r.rank == 1 else r for r in run.files.steps()]
    assert "steps-r1.jsonl begins with step 1, the rank reported 1" in findings(
        history.with_records(run, records), "bundle-complete"
    )


def test_an_event_of_a_node_that_the_history_lacks_is_found() -> None:
    run = history.clean()

    class Files(history.Files):
        def event_sources(self) -> Iterator[tuple[str, Source]]:
            yield "nodes/n1/agent.x.jsonl", Source(writer="agent", n=77, node="n1", incarnation="x")

    files = Files(records=list(run.files.steps()), texts=dict.fromkeys(run.files.paths(), ""))
    text = "nodes/n1/agent.x.jsonl has event 77 of agent, which the history lacks"
    assert text in findings(dataclasses.replace(run, files=files), "bundle-complete")


def test_a_run_that_gathered_nothing_is_unknown() -> None:
    run = history.clean()
    assert findings(history.without(run, "gather", 1), "bundle-complete") == "unknown\nnothing was gathered"


def test_the_count_of_an_earlier_attempt_proves_nothing_about_a_later_one() -> None:
    run = history.reference()
    stopped = first(run, "gang.stop", "ok", node="n0", epoch=1)
    text = "the processes that restart 1 left on n0 were not counted"
    assert text in findings(changed(run, stopped, epoch=0), "no-orphans")


def test_a_process_that_was_exiting_must_be_reported_or_counted_later() -> None:
    run = history.reference()
    early, last = first(run, "gang.stop", "ok", "n0", epoch=0), first(run, "gang.stop", "ok", "n0", epoch=1)
    assert findings(changed(run, early, {"exiting": [4711]}), "no-orphans") == "pass", "the last stop counted it"
    unproved = changed(run, last, {"exiting": [4711]})
    assert "the processes that restart 1 left on n0 were not counted" in findings(unproved, "no-orphans")
    exit = first(run, "rank.exit", node="n0", epoch=1)
    reported = {**exit.value, "pid": 4711}
    assert findings(with_copy(unproved, exit, last.seq - exit.seq + 1, value=reported), "no-orphans") == "pass"
    before = with_copy(unproved, exit, value=reported)
    assert "were not counted" in findings(before, "no-orphans"), "it is another process, which ended before"
    other = with_copy(unproved, exit, last.seq - exit.seq + 1, value=reported, epoch=2)
    assert "were not counted" in findings(other, "no-orphans"), "it is another process, of a later start"


# --- spares, results ----------------------------------------------------------------------------------------------------


def test_only_nodes_that_take_a_place_by_the_policy_spare_are_spares() -> None:
    run = history.changed(history.reference(), "recovery.decided", value={"policy": {"n2": "restart"}})
    assert ask(run, "spare-warm").text == "no spare was used"


# --- fault-verified -----------------------------------------------------------------------------------------------------


def test_each_gap_in_the_proof_of_a_fault_is_found() -> None:
    run = history.reference()
    ok, injected = first(run, "fault.act", "ok"), first(run, "fault.injected")
    assert "f0 was acknowledged 2 times" in findings(with_copy(run, ok), "fault-verified")
    over: dict[str, Any] = {"f": "lease.over", "value": {"key": "f/f0/act"}}
    assert "the time limit of f0 was over" in findings(with_copy(run, injected, **over), "fault-verified")
    verified = first(run, "fault.verified")
    text = "fault.verified of f0 comes before fault.injected"
    assert text in findings(moved(run, verified, injected.seq), "fault-verified")
    healed = first(run, "fault.healed")
    text = "f0: undoing and its verification are in the wrong order"
    assert text in findings(moved(run, first(run, "heal.verified"), healed.seq), "fault-verified")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"node": "n1"}, "f0 held a rank of n1 but acted on n2"),
        ({"value": {"phase": "forward"}}, "f0 did not wait in allreduce of step 30"),
        ({"value": {"step": 29}}, "f0 did not wait in allreduce of step 30"),
    ],
)
def test_the_held_rank_must_be_the_planned_one(change: dict[str, Any], text: str) -> None:
    run = history.reference()
    assert text in findings(changed(run, first(run, "rank.held"), **change), "fault-verified")


def test_a_target_that_resolved_to_another_node_is_found() -> None:
    run = history.reference()
    target = first(run, "fault.target")
    text = "the target of f0 is 2, which was n2, but it resolved to n1"
    assert text in findings(changed(run, target, {"node": "n1"}, node="n1"), "fault-verified")
