"""A fault that is not proved is unknown, and what nothing planned is a finding."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator import views
from orchestrator.checkers import fault_verified
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
    fault = FaultPlan(id="f0", fault="slow-node", node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(fault, held=held)
    bed.say("keeper", "fault.verified", {"id": "f0", "evidence": {"limited": 3}}, node=node, epoch=0)
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


CONTRADICTED = {
    "crash-node": {"left": [4242]},
    "pause-node": {"states": {"7": "T", "8": "S"}},
    "hang-rank": {"local_rank": 0, "state": "S"},
    "crash-rank": {"local_rank": 0, "state": "R"},
    "cut-link": {"eth0": "has a link"},
}


def _stopped(kind: str, evidence: object, lasted: object = None, *, steps: int = 0, alive: bool = False) -> Run:
    """n1 is hit at step 30 of 60, and makes ``steps`` more steps; with ``alive`` its agent writes an event."""
    fault = FaultPlan(id="f0", fault=kind, node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(fault)
    lasts = {} if lasted is None else {"lasts": True}
    bed.say("keeper", "fault.verified", {"id": "f0", "evidence": evidence, **lasts}, node=node, epoch=0)
    bed.answer("keeper", "fault.act", "f/f0/act", node, {"verified": True})
    bed.train(29 + steps)
    if alive:
        bed.say("agent", "agent.ready", {}, node=node, epoch=0)
    if lasted:
        bed.say("keeper", "fault.lasted", {"id": "f0", **lasted}, node=node, epoch=0)  # type: ignore[dict-item]
    if steps or lasted is not None:
        bed.say("keeper", "fault.healed", {"id": "f0", "evidence": {"signalled": []}}, node=node, epoch=0)
    return bed.run(history.twin())


def _doubts(run: Run) -> list[str]:
    (trace,), times = views.traces(run.trial, run.history), views.clocks(run.history)
    texts = [finding.text for finding in fault_verified._undone(run, trace, times)]
    assert not texts or ask(run, "fault-verified").outcome == "unknown"
    return texts


@pytest.mark.parametrize("kind", CONTRADICTED)
def test_evidence_that_says_something_else_proves_nothing(kind: str) -> None:
    field = next(reversed(CONTRADICTED[kind]))  # type: ignore[call-overload]
    assert any(f"fault.verified of f0 says {field}: " in text for text in _doubts(_stopped(kind, CONTRADICTED[kind])))


@pytest.mark.parametrize(("kind", "evidence"), [
    ("crash-node", {"left": []}), ("pause-node", {"states": {"7": "T"}}), ("pause-node", {"states": [4]}),
    ("hang-rank", {"state": "T, T"}), ("crash-rank", {"state": "gone"}), ("cut-link", {"eth0": "gone"}), ("hang-rank", None),
])  # fmt: skip
def test_evidence_that_agrees_raises_no_doubt(kind: str, evidence: object) -> None:
    assert _doubts(_stopped(kind, evidence)) == []


LASTED = {"held": True, "samples": 9, "evidence": {}}


@pytest.mark.parametrize(("lasted", "text"), [
    ({**LASTED, "held": False, "evidence": {"state": "S"}}, "f0 was undone from outside before ccbed undid it"),
    ({}, "f0 was not observed until it was undone"),
    (LASTED, ""), ({**LASTED, "held": None}, ""),
])  # fmt: skip
def test_a_fault_that_did_not_last_is_not_proved(lasted: dict[str, object], text: str) -> None:
    doubts = _doubts(_stopped("pause-node", {"states": {"7": "T"}}, lasted))
    assert (len(doubts), text in "".join(doubts)) == (bool(text), True)


@pytest.mark.parametrize("kind", ["pause-node", "hang-rank"])
def test_a_step_of_a_stopped_rank_is_a_doubt(kind: str) -> None:
    assert any(
        "rank 1 completed step 30 on n1 while f0 had stopped it" in text
        for text in _doubts(_stopped(kind, {}, LASTED, steps=6))
    )
    assert _doubts(_stopped("slow-node", {}, LASTED, steps=6)) == [], "a slow node makes steps"


@pytest.mark.parametrize(("kind", "count"), [("pause-node", 1), ("hang-rank", 0)])
def test_a_reply_of_a_stopped_node_is_a_doubt(kind: str, count: int) -> None:
    """The agent of a node with one stopped rank goes on."""
    assert len(_doubts(_stopped(kind, {}, LASTED, alive=True))) == count
