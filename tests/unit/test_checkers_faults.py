"""A fault that is not proved is unknown, and what nothing planned is a finding."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.model.event import Clock
from orchestrator.model.run import Run
from orchestrator.model.trial import FaultPlan, Trigger

from . import history
from .verdicts import ask, outcomes


@pytest.mark.parametrize("healing", [True, False])
def test_a_disarmed_fault_is_unknown_and_never_a_pass(healing: bool) -> None:
    bed = history.Bed(trial=history.trial(history.crash_at(30)))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(bed.trial.faults[0])
    bed.say("keeper", "fault.act", {"reason": "not verified"}, type="fail", key="f/f0/act", node=node, epoch=0)
    bed.train(60)
    bed.finish(healing=healing)
    run = bed.run(history.twin())
    verdict = ask(run, "fault-verified")
    assert verdict.outcome == "unknown"
    assert "fault not proved" in verdict.text
    assert outcomes(run)["bit-exact"] == "unknown"
    assert outcomes(run)["detected-within"] == "unknown"
    assert "fail" not in outcomes(run).values()


@pytest.mark.parametrize(
    "name",
    ["fault.planned", "rank.held", "fault.target", "lease.armed", "fault.before", "fault.injected", "fault.verified"],
)
def test_a_proof_with_a_missing_link_is_unknown(name: str) -> None:
    verdict = ask(history.without(_of_format(2), name), "fault-verified")
    assert verdict.outcome == "unknown"
    assert "fault not proved" in verdict.text


def _of_format(number: int) -> Run:
    return history.changed(history.reference(), "run.begin", value={"format": number})


def test_a_bundle_of_format_1_does_not_say_what_held_before() -> None:
    assert ask(history.without(history.reference(), "fault.before"), "fault-verified").outcome == "pass"


@pytest.mark.parametrize("value", [{"held": True}, {"held": None}, {"held": "no"}])
def test_a_state_that_held_before_or_was_not_known_proves_nothing(value: dict[str, object]) -> None:
    run = history.changed(history.reference(), "fault.before", value=value)
    verdict = ask(run, "fault-verified")
    assert verdict.outcome == "unknown"
    assert "fault not proved" in verdict.text
    assert "before the injection" in verdict.text
    assert outcomes(run)["detected-within"] == "unknown"


@pytest.mark.parametrize(("held", "expected"), [(False, "pass"), (True, "unknown")])
def test_a_fault_that_changed_nothing_leaves_nothing_to_compare(held: bool, expected: str) -> None:
    """Injected, verified and healed without a loss: a twin shows nothing about recovery from it."""
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(fault, held=held)
    bed.say("keeper", "fault.verified", {"id": "f0", "evidence": {"stopped": 3}}, node=node, epoch=0)
    bed.answer("keeper", "fault.act", "f/f0/act", node, {"verified": True})
    bed.train(60)
    bed.finish()
    verdicts = outcomes(bed.run(history.twin()))
    assert (verdicts["fault-verified"], verdicts["bit-exact"]) == (expected, expected)


def test_a_fault_that_was_planned_and_left_no_trace_at_all_is_unknown() -> None:
    run = dataclasses.replace(history.clean(), trial=history.trial(history.crash_at(30)))
    assert ask(run, "fault-verified").outcome == "unknown"


def test_a_fault_that_was_not_reached_is_unknown() -> None:
    run = history.clean()
    run = dataclasses.replace(run, trial=history.trial(history.crash_at(30)))
    note = dataclasses.replace(
        run.history.events[-2], type="note", f="fault.unreached", value={"id": "f0", "reason": "ended"}
    )
    run = history.with_events(run, [*run.history.events[:-1], note, run.history.events[-1]])
    assert "not reached" in ask(run, "fault-verified").text


def test_a_kill_inside_a_collective_needs_another_rank_inside_of_it() -> None:
    verdict = ask(history.without(history.reference(), "rank.inside"), "fault-verified")
    assert verdict.outcome == "unknown"
    assert "mid-collective not shown" in verdict.text


def test_a_rank_that_came_inside_after_the_kill_shows_nothing() -> None:
    run = history.reference()
    after = next(e for e in run.history.events if e.f == "fault.injected").at.mono + 0.001
    for nth in range(3):
        run = history.changed(run, "rank.inside", nth, at=Clock(boot=history.BOOT, mono=after, wall=after))
    assert "mid-collective not shown" in ask(run, "fault-verified").text


def test_an_expired_hold_is_unknown() -> None:
    run = history.reference()
    held = next(e for e in run.history.events if e.f == "rank.held")
    expired = dataclasses.replace(held, f="hold.expired", value={"rank": 2, "hold": "f0", "held_s": 10.0})
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "lease.armed")
    assert ask(history.with_events(run, [*events[:at], expired, *events[at:]]), "fault-verified").outcome == "unknown"


def test_an_injection_that_nobody_asked_for_fails() -> None:
    run = history.reference()
    events = [e for e in run.history.events if not (e.f == "fault.act" and e.type == "invoke")]
    assert ask(history.with_events(run, events), "fault-verified").outcome == "fail"


def test_a_fault_on_another_node_than_the_target_fails() -> None:
    assert ask(history.changed(history.reference(), "fault.injected", node="n1"), "fault-verified").outcome == "fail"
    run = history.changed(history.reference(), "fault.target", node="n1", value={"node": "n1"})
    assert ask(run, "fault-verified").outcome == "fail"


def test_a_fault_that_acted_twice_fails() -> None:
    run = history.reference()
    (act,) = [e for e in run.history.events if e.f == "fault.injected"]
    assert (
        ask(history.with_events(run, [*run.history.events[:-1], act, run.history.events[-1]]), "fault-verified").outcome
        == "fail"
    )


def test_a_bed_that_was_not_seen_to_be_healed_fails() -> None:
    assert ask(history.without(history.reference(), "heal.verified"), "fault-verified").outcome == "fail"
