"""Verdicts are asked for by name, a broken checker proves nothing, and the exit code follows from the worst."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

from orchestrator.core.verdict import judge, twin
from orchestrator.model.plugin import Catalogue, Plugin
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Liveness, Recovery
from orchestrator.model.verdict import Outcome, Verdict

from . import history
from .catalogue import ALWAYS, CATALOGUE


def plugin(**content: Any) -> Plugin:
    return Plugin(name="x", summary="X.", path="x.py", module=types.SimpleNamespace(**content))  # type: ignore[arg-type]


def with_workload(*checks: str) -> Catalogue:
    return dataclasses.replace(CATALOGUE, workloads={"train-dp": plugin(CHECKS=checks)})


def test_what_always_runs_comes_first_then_the_workloads_then_the_trials_own_with_its_values() -> None:
    own = CheckSpec(name="detected-within", params={"seconds": 1.0})
    trial = dataclasses.replace(history.trial(), checks=(own, CheckSpec(name="no-hang", params={"slack_s": 3.0})))
    chosen = judge.specs(trial, with_workload("no-hang", "bit-exact"))
    names = [spec.name for spec in chosen]
    assert set(names[: len(ALWAYS)]) == ALWAYS
    assert names[len(ALWAYS) :] == ["no-hang", "bit-exact", "detected-within"]
    assert chosen[len(ALWAYS)].params == {"slack_s": 3.0}
    assert own in chosen


def test_a_twin_is_needed_only_by_checkers_that_compare() -> None:
    assert judge.needs_twin(judge.specs(history.trial(), with_workload("bit-exact")), CATALOGUE)
    assert not judge.needs_twin(judge.specs(history.trial(), with_workload("no-hang")), CATALOGUE)


def broken(run: Run, params: object) -> Verdict:
    raise RuntimeError("no idea")


def test_a_checker_that_raises_is_unknown_and_the_others_still_speak() -> None:
    checkers = {**CATALOGUE.checkers, "broken": plugin(ALWAYS=True, TWIN=False, Params=dict, check=broken)}
    catalogue = dataclasses.replace(CATALOGUE, checkers=checkers)
    names = [CheckSpec(name="broken"), CheckSpec(name="finished"), CheckSpec(name="absent")]
    first, second, third = judge.judge(history.reference(), catalogue, names)
    assert (first.check, first.outcome) == ("broken", "unknown")
    assert "RuntimeError: no idea" in first.text or "TypeError" in first.text
    assert second.outcome == "pass"
    assert third.outcome == "unknown"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (Verdict(check="", outcome="failed", text=""), "outcome must be one of pass, fail, unknown (got 'failed')"),  # type: ignore[arg-type]
        (Verdict(check="", outcome="skipped", text=""), "got 'skipped'"),
        (Verdict(check="", outcome="pass", text="", evidence={"x": {1, 2}, "y": object()}), "TypeError"),
        (None, "TypeError"),
    ],
)
def test_what_is_no_verdict_is_unknown(returned: Verdict, text: str) -> None:
    own = plugin(ALWAYS=True, TWIN=False, Params=type("Params", (), {}), check=lambda run, params: returned)
    (verdict,) = judge.judge(history.reference(), Catalogue(checkers={"own": own}), [CheckSpec(name="own")])
    assert verdict.outcome == "unknown"
    assert text in verdict.text


def test_a_checker_that_ends_the_process_is_unknown() -> None:
    def leave(run: Run, params: object) -> Verdict:
        raise SystemExit(0)

    own = plugin(ALWAYS=True, TWIN=False, Params=type("Params", (), {}), check=leave)
    (verdict,) = judge.judge(history.reference(), Catalogue(checkers={"own": own}), [CheckSpec(name="own")])
    assert verdict.outcome == "unknown"


def test_a_parameter_that_a_checker_does_not_have_leaves_it_unknown() -> None:
    (verdict,) = judge.judge(history.reference(), CATALOGUE, [CheckSpec(name="no-hang", params={"slak": 1})])
    assert verdict.outcome == "unknown"
    assert "slak" in verdict.text


def verdicts(*outcomes: Outcome) -> list[Verdict]:
    return [Verdict(check="c", outcome=outcome, text="t") for outcome in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "ending", "code"),
    [
        (("pass", "pass"), ("finished", ""), 0),
        (("pass", "unknown"), ("finished", ""), 2),
        (("unknown", "fail"), ("finished", ""), 1),
        ((), ("finished", ""), 2),
        (("pass",), ("failed", "finding"), 1),
        (("fail",), ("failed", "infrastructure"), 4),
        (("pass",), ("finished", "infrastructure"), 4),
        (("fail",), ("interrupted", "infrastructure"), 130),
        (("pass",), ("running", ""), 2),
        (("pass", "passed"), ("finished", ""), 2),
        (("pass", "skipped"), ("finished", ""), 0),
    ],
)
def test_the_exit_code_is_the_first_that_applies(
    outcomes: tuple[Outcome, ...], ending: tuple[str, str], code: int
) -> None:
    assert judge.exit_code(verdicts(*outcomes), *ending) == code


def test_a_clean_run_is_a_twin_with_every_loss_and_digest() -> None:
    run = history.clean()
    made = twin.make_twin(run)
    assert made is not None
    assert (made.steps, made.faults, made.restarts, made.run) == (60, 0, 0, history.RUN)
    assert made.losses == history.twin().losses
    assert made.digests == history.twin().digests
    assert made.key == twin.twin_key(run.trial, run.extras["fingerprint.json"])


def test_a_run_that_was_disturbed_is_no_twin() -> None:
    clean = history.clean()
    exits = history.changed(clean, "rank.exit", value={"code": 1})
    paused = history.with_events(
        clean, [*clean.history.events[:-1], dataclasses.replace(clean.history.events[-2], type="note", f="node.silent")]
    )
    unended = history.prefix(clean, len(clean.history.events) - 1)
    planned = dataclasses.replace(clean, trial=history.trial(history.crash_at(30)))
    empty = history.changed(clean, "rank.finished", value={"digest": {}})
    for run in (history.reference(), exits, paused, unended, planned, empty, history.with_records(clean, [])):
        assert twin.make_twin(run) is None


def test_the_reason_why_a_run_is_no_twin_is_named() -> None:
    run = history.changed(history.clean(), "rank.exit", 2, value={"code": 3})
    failed = history.changed(run, "run.end", value={"outcome": "failed", "reason": "the budget is spent"})
    assert twin.unfit(failed) == f"{history.RUN} failed: rank 2 left with exit code 3"
    isolated = dataclasses.replace(failed, extras={**failed.extras, "plan.json": {"isolation": {"writable": []}}})
    assert twin.unfit(isolated).endswith(
        "; it may write only in its copy of the project, and --root names what belongs to it"
    )
    assert twin.unfit(history.reference()) == "it was disturbed"
    assert twin.unfit(history.clean()) == "it recorded no digest of its weights, or not its whole state"


def test_the_key_of_a_twin_leaves_out_what_disturbs_or_judges_and_nothing_else() -> None:
    trial, print_ = history.trial(), {"torch": "2.13.0", "threads": 1}
    key = twin.twin_key(trial, print_)
    disturbed = dataclasses.replace(
        history.trial(history.crash_at(30)), name="another",
        recovery=Recovery(max_restarts=1), checks=(CheckSpec(name="no-hang"),), liveness=Liveness(lost_s=9.0),
    )  # fmt: skip
    assert twin.twin_key(disturbed, print_) == key
    others = (
        twin.twin_key(history.trial(seed=8), print_),
        twin.twin_key(dataclasses.replace(trial, params={"batch": 32}), print_),
        twin.twin_key(dataclasses.replace(trial, world=dataclasses.replace(trial.world, nodes=8)), print_),
        twin.twin_key(trial, {**print_, "torch": "2.14.0"}),
    )
    assert key not in others
    assert len(set(others)) == len(others)
