"""Outcome, exit code and sentence of a night from its rows and findings.

A failure is worse than an unknown, an unknown than a warning. Gates without a history yet, and nodes with too few peers,
leave the outcome to the runs, the floors and the gates that know: else every early night would be unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ...model import errors
from .. import rows as night_rows
from ..gates.finding import Outcome
from ..night_judgement import Judged, NightJudgement
from ..suite import FailOn, Row

#: The finding of a row that did not pass. An unfinished trial failed; one that could not be run or judged says nothing of the hardware.
STATES: Mapping[str, Outcome] = {"failed": "fail", "unfinished": "fail", "unknown": "unknown", "error": "unknown"}
_FAILURES = ("fail", "xpass")


def conclude(
    rows: Sequence[Row],
    findings: tuple[Judged, ...],
    *,
    earlier: tuple[str, ...],
    notes: tuple[str, ...],
    fail_on: FailOn = "fail",
) -> NightJudgement:
    """``fail_on``: with "warn" the night fails if a finding warns; the findings keep their states."""
    failures = _FAILURES if fail_on == "fail" else (*_FAILURES, "warn")
    outcome = _outcome(rows, findings, failures)
    return NightJudgement(
        outcome=outcome, exit=_exit(outcome, rows), sentence=_sentence(outcome, rows, findings, failures), findings=findings,
        earlier=earlier, history=_history(findings), notes=notes,
    )  # fmt: skip


def _outcome(
    rows: Sequence[Row], findings: Sequence[Judged], failures: Sequence[str]
) -> Literal["pass", "warn", "fail", "unknown"]:
    states = {judged.state for judged in findings if judged.is_counted}
    if not states.isdisjoint(failures):
        return "fail"
    if "unknown" in states or all(row.state == "skipped" or night_rows.node(row) for row in rows):
        return "unknown"
    return "warn" if "warn" in states else "pass"


def _exit(outcome: str, rows: Sequence[Row]) -> int:
    """What the infrastructure broke cannot be judged, and comes first, as for `ccbed run`. A warning alone is no failure."""
    codes = {"fail": errors.EXIT_FINDING, "unknown": errors.EXIT_UNKNOWN}
    return night_rows.worst((night_rows.exit_code(rows), codes.get(outcome, errors.EXIT_PASS)))


def _sentence(outcome: str, rows: Sequence[Row], findings: Sequence[Judged], failures: Sequence[str]) -> str:
    counts = Counter(row.state for row in rows if not night_rows.node(row))
    lost = ", ".join(dict.fromkeys(filter(None, map(night_rows.node, rows))))
    ran = ", ".join(
        f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: _ORDER.index(item[0]))
    )
    states = failures if outcome == "fail" else _WORST[outcome]
    worst = [judged for judged in findings if judged.is_counted and judged.state in states]
    worst.sort(key=lambda judged: judged.state == "warn")
    text = (
        _PASSES[any(judged.state == "pass" for judged in findings)] if outcome == "pass" else "Every repeat was skipped"
    )
    if worst:
        more = (
            f"; {len(worst) - 1} more such findings"
            if len(worst) > 2
            else "; 1 more such finding"
            if len(worst) > 1
            else ""
        )
        text = f"{worst[0].finding.text}{more}"
    elif not counts:
        text = "Nothing was run"
    warned = [judged for judged in worst if judged.state == "warn"]
    strict = "warnings count as failures (--fail-on warn)" if any(judged.state in failures for judged in warned) else ""
    parts = (text, strict, f"lost: {lost}" if lost else "", f"runs: {ran}" if ran else "")
    return "; ".join(filter(None, parts)) + "."


_ORDER = ("passed", "failed", "unknown", "error", "unfinished", "skipped")
_WORST: Mapping[str, tuple[str, ...]] = {"unknown": ("unknown",), "warn": ("warn",), "pass": ()}


#: Whether a metric has been compared with anything -> the sentence.
_PASSES = {True: "No metric is worse than its reference", False: "No metric has a reference yet"}
_WAITING = re.compile(r"no history yet \((\d+) of (\d+) nights")


def _history(findings: Sequence[Judged]) -> str:
    """The gates that have no history yet, with the longest history that one of their metrics has."""
    counts: dict[str, tuple[int, int]] = {}
    for judged in findings:
        match = _WAITING.search(judged.finding.text)
        if match and not judged.is_counted:
            number = int(match[1]), int(match[2])
            counts[judged.finding.gate] = max(counts.get(judged.finding.gate, (0, 0)), number)
    if not counts:
        return ""
    have, needed = (max(numbers) for numbers in zip(*counts.values(), strict=True))
    return f"{have} of {needed} earlier nights; not judged yet: {', '.join(sorted(counts))}"
