"""The verdict over collectives: exact on every rank, wrong on one, or nobody looked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.collectives.plugins.checkers import results_exact
from orchestrator.model.plugin import NoParams
from orchestrator.model.run import Run
from orchestrator.model.verdict import Verdict

from .. import history

CASES = [
    {"case": k, "operation": "all-reduce", "algorithm": "ring", "bytes": 1024, "dtype": "float32", "iterations": 20}
    for k in (0, 1)
]


def run(verified: int = 40, **plan: Any) -> Run:
    """The reference run, its last gang having measured two cases."""
    base = history.reference()
    last = max(event.epoch or 0 for event in base.history.events)
    events = []
    for event in base.history.events:
        more = {"verified": verified} if event.f == "rank.finished" else {}
        events.append(replace(event, value={**event.value, **more}))
        if event.f == "rank.joined" and event.epoch == last and event.value.get("rank") == 0:
            events.append(
                replace(event, f="collective.plan", value={"rank": 0, "cases": CASES, "verify": True, **plan})
            )
    return history.with_events(base, events)


def ask(given: Run) -> Verdict:
    return results_exact.check(given, NoParams())


def test_all_exact() -> None:
    verdict = ask(run())
    assert (verdict.outcome, verdict.text) == ("pass", "40 results of 2 cases exact, all ranks equal")


def test_a_wrong_element_fails_with_rank_place_and_values() -> None:
    good = run()
    plan = good.history.first("collective.plan")
    assert plan is not None
    value = {"rank": 2, "case": 1, "step": 25, "offset": 7, "expected": 10, "got": 11}
    events = [*good.history.events]
    events.insert(events.index(plan) + 1, replace(plan, f="collective.wrong", value=value, node="n2"))
    verdict = ask(history.with_events(good, events))
    assert verdict.outcome == "fail"
    assert verdict.text == "all-reduce ring 1024 float32: rank 2 (n2), step 25: element 7: expected 10, got 11"
    assert verdict.evidence["findings"][0]["seq"]


def test_what_nobody_verified_is_unknown() -> None:
    verdict = ask(run(verify=False, verified=0))
    assert (verdict.outcome, verdict.text) == ("unknown", "verification was off: --verify true")


@pytest.mark.parametrize("verified", [39, 41])
def test_another_number_of_results_than_planned_is_unknown(verified: int) -> None:
    verdict = ask(run(verified=verified))
    assert verdict.outcome == "unknown" and verdict.text.startswith(f"rank 0 verified {verified} of 40 results")


def test_a_run_without_a_plan_is_unknown() -> None:
    assert ask(history.reference()).outcome == "unknown"
