"""Who took part and when: what nothing planned, strangers, late comers, orphans."""

from __future__ import annotations

import dataclasses

from orchestrator.model.event import Clock
from orchestrator.model.trial import Recovery

from . import history
from .verdicts import ask


def test_a_node_killed_by_hand_is_a_finding() -> None:
    run = history.reference()
    keep = [e for e in run.history.events if not e.f.startswith(("fault.", "lease.", "heal."))]
    bare = dataclasses.replace(history.with_events(run, keep), trial=history.trial())
    verdict = ask(bare, "planned-faults-only")
    assert (verdict.outcome, verdict.text) == ("fail", "n2 exited, which nothing planned")


def test_another_node_than_the_planned_one_is_a_finding() -> None:
    assert ask(history.changed(history.reference(), "node.exit", node="n3"), "planned-faults-only").outcome == "fail"


def test_a_planned_loss_does_not_excuse_a_second_one_after_the_node_was_back() -> None:
    run = history.reference("restart")
    events = list(run.history.events)
    exit_ = next(e for e in events if e.f == "node.exit")
    at = next(i for i, e in enumerate(events) if e.f == "rank.finished")
    late = dataclasses.replace(exit_, source=dataclasses.replace(exit_.source, n=99), epoch=1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "planned-faults-only").outcome == "fail"


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
    again = dataclasses.replace(events[at], source=writer)
    keep = [e for e in events if e.source.node != "n0" or e.source.writer != "agent" or e.seq <= at + 1]
    del keep  # numbering is another matter: only the count of answers is looked at here
    doubled = history.with_events(run, [*events[: at + 1], again, *events[at + 1 :]])
    texts = [one["text"] for one in ask(doubled, "membership").evidence["findings"]]
    assert any("2 times in the history" in text for text in texts)
    resumed = dataclasses.replace(events[0], f="run.resumed", value={"pid": 2, "torn_bytes": 0})
    excused = history.with_events(run, [*events[: at + 1], resumed, again, *events[at + 1 :]])
    texts = [one["text"] for one in ask(excused, "membership").evidence["findings"]]
    assert not any("2 times in the history" in text for text in texts)


def test_a_process_that_was_left_behind_fails() -> None:
    run = history.reference()
    last = max(i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop"))
    assert ask(history.changed(run, "gang.stop", last, value={"left": 1}), "no-orphans").outcome == "fail"


def test_a_node_that_nobody_counted_is_unknown() -> None:
    run = history.reference()
    stops = [i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop") if e.epoch == 1]
    assert ask(history.without(run, "gang.stop", stops[-1]), "no-orphans").outcome == "unknown"
