"""The sentence names what was lost, whether it came back, what it cost and what was proved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.core.verdict import rungs, sentence
from orchestrator.model.trial import Trigger
from orchestrator.model.verdict import Verdict

from . import run_builder


def say(verdicts: tuple[Verdict, ...] | None = None, **changes: Any) -> str:
    expected = run_builder.verdicts() if verdicts is None else verdicts
    return sentence.sentence(run_builder.trial(), run_builder.view(**changes), expected)


def test_a_failover_is_told_in_one_sentence() -> None:
    assert say() == "Node n2 lost at step 30; back in 0.16 s; 4 steps redone."


def test_a_run_without_a_failover_says_that_no_node_was_lost() -> None:
    text = say(verdicts=run_builder.verdicts()[:1], failovers=())
    assert text == "60 steps finished on 4 nodes in 0.93 s; no node lost."


def test_a_node_that_was_lost_without_a_failover_is_named() -> None:
    """As where the run was interrupted right after the loss, and resumed."""
    text = say(verdicts=run_builder.verdicts()[:1], failovers=(), lost=("n2",))
    assert text == "60 steps finished on 4 nodes in 0.93 s; node n2 lost."


def test_several_failovers_are_told_in_order_with_all_steps_redone() -> None:
    second = run_builder.failover(index=1, lost=("n0", "n4"), fault=None, ttr_s=1.26, lost_steps=(46,))
    text = say(failovers=(run_builder.failover(), second))
    expected = "2 failovers: node n2 lost at step 30 (back in 0.16 s), nodes n0 and n4 lost at step 47 (back in 1.3 s)"
    assert text == f"{expected}; 5 steps redone."


def test_the_step_of_a_loss_is_that_in_which_the_rank_was_held() -> None:
    """Ranks that do not wait for each other may be further, and their steps are redone as well."""
    plan = dataclasses.replace(run_builder.trial().faults[0], at=Trigger(after_save=2))
    trial = dataclasses.replace(run_builder.trial(), faults=(plan,))
    fault = dataclasses.replace(run_builder.fault_view(), step=39)
    view = run_builder.view(faults=(fault,), failovers=(run_builder.failover(lost_steps=(36, 47)),))
    assert sentence.sentence(trial, view).startswith("Node n2 lost at step 39;")


def test_failovers_that_repeat_are_named_once() -> None:
    same = {"lost": (), "failed_ranks": (1,), "fault": None, "lost_steps": (), "cause": "left with exit code 1"}
    text = say(failovers=tuple(run_builder.failover(index=index, **same) for index in range(3)))
    assert text.startswith("3 failovers: rank 1 failed (left with exit code 1) (back in 0.16 s), 3 times.")


def test_other_verdicts_of_the_same_outcome_are_counted_apart_from_the_findings_of_the_first() -> None:
    bad = [Verdict(check=name, outcome="fail", text="RNG differs (and 1 more)") for name in ("a", "b", "c")]
    assert say(verdicts=(bad[0], bad[1])).endswith("a fails: RNG differs (and 1 more); 1 more check fails.")
    assert say(verdicts=tuple(bad)).endswith("a fails: RNG differs (and 1 more); 2 more checks fail.")


def test_a_rank_that_failed_on_a_live_node_is_named_as_a_rank() -> None:
    failover = run_builder.failover(lost=(), failed_ranks=(1, 3), fault=None, lost_steps=())
    assert say(failovers=(failover,)).startswith("Ranks 1 and 3 failed; back in 0.16 s.")


def test_a_node_that_did_not_come_back_is_not_called_back() -> None:
    failover = run_builder.failover(ttr_s=None, lost_steps=())
    text = say(verdicts=(), failovers=(failover,), outcome="failed", reason="no policy applies", step=29)
    assert text == (
        "Node n2 lost at step 30; not back; the run failed at step 29 of 60: no policy applies; no verdicts yet."
    )


def test_a_finding_that_the_reason_has_told_is_not_told_again() -> None:
    message = "rank 2, element 5: expected 34, got 35"
    bad = Verdict(check="finished", outcome="fail", text=f"wrong result of n2: {message}")
    text = say(verdicts=(bad,), failovers=(), outcome="failed", reason=f"{message}; it is not measured again", step=0)
    assert (
        text == f"The run failed before its first step was done: {message}; it is not measured again; finished fails."
    )


def test_an_interrupted_run_says_where_it_stands() -> None:
    assert say(verdicts=(), failovers=(), outcome="interrupted", step=12).startswith("Interrupted at step 12 of 60;")


def test_an_unproved_fault_is_told_as_unknown() -> None:
    bad = Verdict(check="fault-verified", outcome="unknown", text="no fault.verified event")
    assert say(verdicts=(bad,)).endswith("fault-verified is unknown: no fault.verified event.")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.158, "0.16 s"),
        (0.997, "1.0 s"),
        (4.23, "4.2 s"),
        (59.97, "1 min 00 s"),
        (125, "2 min 05 s"),
    ],
)
def test_durations_are_short(value: float, text: str) -> None:
    assert sentence.seconds(value) == text


def test_no_verdict_at_all_is_unknown() -> None:
    assert rungs.worst(()) == "unknown"


def test_a_failure_outweighs_an_unknown() -> None:
    mixed = [Verdict(check=name, outcome=name, text="") for name in ("pass", "unknown", "fail")]
    assert rungs.worst(mixed) == "fail"
    assert rungs.worst(mixed[:2]) == "unknown"


@pytest.mark.parametrize(
    ("outcomes", "ending", "word"),
    [
        (("pass",), ("finished", ""), "pass"),
        (("pass",), ("finished", "infrastructure"), "broken"),
        (("fail",), ("failed", "infrastructure"), "broken"),
        (("pass",), ("failed", "finding"), "fail"),
        (("pass",), ("interrupted", ""), "interrupted"),
        (("pass",), ("running", ""), "unknown"),
        (("pass", "skipped"), ("finished", ""), "pass"),
        (("skipped",), ("finished", ""), "unknown"),
    ],
)
def test_every_report_says_what_the_exit_code_says(
    outcomes: tuple[Any, ...], ending: tuple[str, str], word: str
) -> None:
    verdicts = [Verdict(check="c", outcome=outcome, text="") for outcome in outcomes]
    assert rungs.overall(verdicts, *ending) == word
