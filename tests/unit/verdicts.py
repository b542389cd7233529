"""Asking checkers by name, for tests."""

from __future__ import annotations

from typing import Any

from orchestrator.core.verdict import judge
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec
from orchestrator.model.verdict import Verdict

from .catalogue import CATALOGUE

#: Nothing is measured or probed in the trainings of these tests, their node files are made up, and no watcher observes them.
NAMES = tuple(
    name
    for name in CATALOGUE.checkers
    if name
    not in (
        "results-exact",
        "times-possible",
        "gaps-kept",
        "hardware-probed",
        "same-bits",
        "evidence-agrees",
        "history-replays",
        "resumed-from",
        "resume-complete",
    )
)


def ask(run: Run, name: str, **params: Any) -> Verdict:
    (verdict,) = judge.judge(run, CATALOGUE, [CheckSpec(name=name, params=params)])
    return verdict


def outcomes(run: Run) -> dict[str, str]:
    return {v.check: v.outcome for v in judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in NAMES])}


def not_passed(run: Run) -> set[str]:
    return {name for name, outcome in outcomes(run).items() if outcome != "pass"}
