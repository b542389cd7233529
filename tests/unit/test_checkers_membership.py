"""Who took part and when: what nothing planned, strangers, late comers, orphans."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.model.event import Clock
from orchestrator.model.run import Run
from orchestrator.model.trial import FaultPlan, Recovery, Trigger

from . import history
from .verdicts import ask


def test_a_node_killed_by_hand_is_a_finding() -> None:
    run = history.reference()
    keep = [e for e in run.history.events if not e.f.startswith(("fault.", "lease.", "heal."))]
    bare = dataclasses.replace(history.with_events(run, keep), trial=history.trial())
    verdict = ask(bare, "planned-faults-only")
    assert (verdict.outcome, verdict.text) == ("fail", "n2 exited, which was not planned")


def test_another_node_than_the_planned_one_is_a_finding() -> None:
    assert ask(history.changed(history.reference(), "node.exit", node="n3"), "planned-faults-only").outcome == "fail"


def test_a_planned_loss_does_not_excuse_a_second_one_after_the_node_was_back() -> None:
    run = history.reference("restart")
    events = list(run.history.events)
    exit_ = next(e for e in events if e.f == "node.exit")
    at = next(i for i, e in enumerate(events) if e.f == "rank.finished")
    late = dataclasses.replace(exit_, source=dataclasses.replace(exit_.source, n=99), epoch=1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "planned-faults-only").outcome == "fail"


@pytest.mark.parametrize(
    ("writer", "f", "value", "text"),
    [
        ("", "", {}, "every loss was caused by a planned fault"),
        ("keeper", "node.exit", {"code": -9, "pid": 1}, "n1 exited, which was not planned"),
        ("ctl", "node.silent", {"silent_s": 2.0}, "n1 fell silent, which was not planned"),
        (
            "agent",
            "rank.exit",
            {"rank": 1, "pid": 101, "code": 1},
            "rank 1 on n1 left with code 1, which was not planned",
        ),
        (
            "agent",
            "rank.exit",
            {"rank": 1, "pid": 101, "code": -9, "error": "out of memory: the kernel killed it"},
            "rank 1 on n1 left with code -9 (out of memory: the kernel killed it), which was not planned",
        ),
    ],
    ids=["nothing else", "its node exits", "its node falls silent", "it crashes again", "it runs out of memory"],
)
def test_a_rank_that_was_crashed_on_purpose_excuses_no_later_loss_of_its_node(
    writer: str, f: str, value: dict[str, Any], text: str
) -> None:
    fault = FaultPlan(id="f0", fault="crash-rank", node=1, at=Trigger(step=30))
    bed = history.acted(fault)
    bed.say("agent", "rank.exit", {"rank": 1, "pid": 101, "code": -9}, node="n1", epoch=0)
    bed.stop()
    bed.epoch, bed.resume = 1, 25
    bed.ctl("recovery.decided", {"lost": [], "failed": [1], "slots": bed.slots}, epoch=1)
    bed.start()
    if f:
        bed.say(writer, f, value, node="n1", epoch=1)
    bed._heal(fault, [])
    bed.ctl("run.end", {"outcome": "finished", "reason": "", "kind": ""})
    verdict = ask(bed.run(), "planned-faults-only")
    assert (verdict.outcome, verdict.text) == ("fail" if f else "pass", text)


@pytest.mark.parametrize("kind", ["pause-node", "slow-node", "slow-link"])
@pytest.mark.parametrize(
    ("writer", "f", "value", "outcome"),
    [("ctl", "node.silent", {"silent_s": 2.0}, "pass"), ("keeper", "node.exit", {"code": -9, "pid": 1}, "fail")],
)
def test_a_node_that_a_fault_stopped_or_slowed_falls_silent_by_it_and_does_not_exit(
    writer: str, f: str, value: dict[str, Any], outcome: str, kind: str
) -> None:
    fault = FaultPlan(id="f0", fault=kind, node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.act(fault)
    bed.say(writer, f, value, node="n1", epoch=0)
    bed.ctl("run.end", {"outcome": "finished", "reason": "", "kind": ""})
    assert ask(bed.run(), "planned-faults-only").outcome == outcome


def test_a_recovery_without_a_detection_is_a_finding() -> None:
    run = history.reference()
    events = [e for e in run.history.events if e.f != "node.exit" and not (e.f == "rank.exit" and e.epoch == 0)]
    assert ask(history.with_events(run, events), "planned-faults-only").outcome == "fail"


def test_a_rank_that_is_given_out_twice_fails() -> None:
    run = history.changed(history.reference(), "gang.start", 1, value={"ranks": [0], "group_rank": 0})
    assert ask(run, "membership").outcome == "fail"


def test_an_old_epoch_that_commits_after_a_new_one_began_fails() -> None:
    run = history.reference()
    late = next(e for e in reversed(run.history.events) if e.f == "checkpoint.commit" and e.epoch == 0)
    begun = next(e for e in run.history.events if e.f == "gang.start" and e.epoch == 1)
    after = dataclasses.replace(late, at=dataclasses.replace(late.at, mono=begun.at.mono + 1.0))
    events = [after if e is late else e for e in run.history.events]
    assert ask(history.with_events(run, events), "membership").outcome == "fail"


def test_a_line_of_an_old_epoch_that_only_arrived_late_is_no_act_of_it() -> None:
    run = history.reference()
    events = list(run.history.events)
    late = next(e for e in reversed(events) if e.f == "rank.inside")
    events.remove(late)
    at = next(i for i, e in enumerate(events) if e.f == "rank.start" and e.epoch == 1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "membership").outcome == "pass"


def test_on_another_host_an_old_epoch_is_judged_by_arrival() -> None:
    run = history.reference()
    events = list(run.history.events)
    late = next(e for e in reversed(events) if e.f == "checkpoint.commit" and e.epoch == 0)
    events.remove(late)
    late = dataclasses.replace(late, at=Clock(boot="boot-b", mono=1.0, wall=1.0))
    at = next(i for i, e in enumerate(events) if e.f == "rank.start" and e.epoch == 1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "membership").outcome == "fail"


def test_a_node_that_nothing_happened_to_is_not_started_again() -> None:
    run = history.changed(history.reference("restart"), "node.apply", 0, node="n1")
    assert ask(run, "membership").outcome == "fail"


def test_more_recoveries_than_were_allowed_fail() -> None:
    run = history.twice()
    trial = dataclasses.replace(run.trial, recovery=Recovery(max_restarts=1))
    assert ask(dataclasses.replace(run, trial=trial), "membership").outcome == "fail"


def test_a_stranger_among_the_incarnations_fails() -> None:
    run = history.reference()
    event = next(e for e in run.history.events if e.f == "rank.joined")
    source = dataclasses.replace(event.source, incarnation="beef")
    assert ask(history.changed(run, "rank.joined", source=source), "membership").outcome == "fail"


def test_a_repeated_answer_is_excused_by_a_resume_only() -> None:
    run = history.reference()
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "gang.start" and e.type == "ok")
    writer = dataclasses.replace(events[at].source, n=50)
    second = dataclasses.replace(events[at], source=writer)
    keep = [e for e in events if e.source.node != "n0" or e.source.writer != "agent" or e.seq <= at + 1]
    del keep  # numbering is another matter: only the count of answers is looked at here
    doubled = history.with_events(run, [*events[: at + 1], second, *events[at + 1 :]])
    texts = [finding["text"] for finding in ask(doubled, "membership").evidence["findings"]]
    assert any("2 times in the history" in text for text in texts)
    resumed = dataclasses.replace(events[0], f="run.resumed", value={"pid": 2, "torn_bytes": 0})
    excused = history.with_events(run, [*events[: at + 1], resumed, second, *events[at + 1 :]])
    texts = [finding["text"] for finding in ask(excused, "membership").evidence["findings"]]
    assert not any("2 times in the history" in text for text in texts)


def test_a_process_that_was_left_behind_fails() -> None:
    run = history.reference()
    last = max(i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop"))
    assert ask(history.changed(run, "gang.stop", last, value={"left": 1}), "no-orphans").outcome == "fail"


def test_a_node_that_nobody_counted_is_unknown() -> None:
    run = history.reference()
    stops = [i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop") if e.epoch == 1]
    assert ask(history.without(run, "gang.stop", stops[-1]), "no-orphans").outcome == "unknown"


def _with_keepers(begin: object, end: object, losses: object = None) -> Run:
    run = history.changed(history.reference(), "run.begin", value={"keeper_pids": begin})
    return history.changed(run, "gather", nth=1, value={"keeper_pids": end, "keeper_losses": losses})


@pytest.mark.parametrize(
    ("end", "outcome", "text"),
    [
        ({"": 7}, "pass", ""),
        ({"": 0}, "fail", "(pid 7) ended, which was not planned"),
        ({"": 8}, "fail", "its successor has pid 8"),
        ({}, "unknown", "not known whether the host agent"),
    ],
)
def test_a_keeper_that_was_lost_is_a_finding(end: dict[str, int], outcome: str, text: str) -> None:
    verdict = ask(_with_keepers({"": 7}, end), "planned-faults-only")
    assert verdict.outcome == outcome
    assert text in verdict.text


@pytest.mark.parametrize("end", [0, 8])
def test_a_keeper_that_the_kernel_killed_for_memory_is_a_loss_of_the_bed_and_no_failure_of_the_job(end: int) -> None:
    verdict = ask(_with_keepers({"": 7}, {"": end}, {"": "out of memory"}), "planned-faults-only")
    assert verdict.outcome == "unknown"
    assert "(pid 7) ended (out of memory): a loss of the bed, not of the job" in verdict.text


def test_a_keeper_killed_for_memory_excuses_no_other_keeper() -> None:
    lost = _with_keepers({"a": 7, "b": 9}, {"a": 0, "b": 0}, {"a": "out of memory"})
    verdict = ask(lost, "planned-faults-only")
    assert verdict.outcome == "fail"
    assert "the host agent on b (pid 9) ended, which was not planned" in verdict.text


def test_a_history_that_says_nothing_of_keepers_says_nothing_of_their_loss() -> None:
    assert ask(history.reference(), "planned-faults-only").outcome == "pass"


@pytest.mark.parametrize(("of", "outcome"), [("host", "pass"), ("engine", "fail")])
def test_a_keeper_goes_with_its_host_where_a_fault_powers_that_off(of: str, outcome: str) -> None:
    run = _with_keepers({"": 7}, {"": 8})
    planned = next(event.value["act"] for event in run.history.events if event.f == "fault.act")
    hit = {"inject": [{"kind": "power", "args": {"state": "off", "of": of}}], "disables": ["agent", of]}
    act = {**planned, **hit}
    assert ask(history.changed(run, "fault.act", value={"act": act}), "planned-faults-only").outcome == outcome


@pytest.mark.parametrize(("left", "outcome"), [(0, "pass"), (2, "fail"), (None, "unknown")])
def test_what_a_keeper_counted_after_an_exit_decides_about_orphans(left: int | None, outcome: str) -> None:
    """Nothing else counted what epoch 0 left on n2."""
    run = history.without(history.reference(), "fault.verified")
    exit_ = next(event for event in run.history.events if event.f == "node.exit")
    value = {"code": -9, "pid": 1, "killed": [], **({} if left is None else {"left": left})}
    ended = dataclasses.replace(exit_, f="node.ended", value=value)
    at = exit_.seq
    run = history.with_events(run, [*run.history.events[:at], ended, *run.history.events[at:]])
    assert ask(run, "no-orphans").outcome == outcome
