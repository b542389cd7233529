"""Outcome, exit code and sentence of a night from its rows and findings.

A failure is worse than an unknown, an unknown than a warning. Figures that have no reference yet leave the outcome to those that
are compared with something; a night without any of these is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ...model import errors
from .. import row_states as night_rows
from ..night_judgement import FLEET, REFERENCE, Judged, NightJudgement
from ..records import Outcome
from ..suite import FailOn, Row, State
from . import floor_limits

#: The finding of a row that did not pass. An unfinished trial failed; one that could not be run or judged says nothing of the hardware.
STATES: Mapping[str, Outcome] = {"failed": "fail", "unfinished": "fail", "unknown": "unknown", "error": "unknown"}
_FAILURES = ("fail", "xpass")
#: Gates that compare figures: with their reference, with all nodes, with a floor.
_COMPARING = (REFERENCE, FLEET, floor_limits.GATE)


def conclude(
    rows: Sequence[Row],
    findings: tuple[Judged, ...],
    *,
    earlier: tuple[str, ...],
    notes: tuple[str, ...],
    fail_on: FailOn = "fail",
    night: str = "this night",
) -> NightJudgement:
    """``fail_on``: with "warn" the night fails if a finding warns; the findings keep their states.
    ``night``: as people call it.
    """
    failures = _FAILURES if fail_on == "fail" else (*_FAILURES, "warn")
    outcome = _outcome(rows, findings, failures)
    return NightJudgement(
        outcome=outcome, exit=_exit(outcome, rows), sentence=_sentence(outcome, rows, findings, failures), findings=findings,
        earlier=earlier, history=_history(findings, night), notes=notes,
    )  # fmt: skip


def _outcome(
    rows: Sequence[Row], findings: Sequence[Judged], failures: Sequence[str]
) -> Literal["pass", "warn", "fail", "unknown"]:
    states = {judged.state for judged in findings if judged.is_counted}
    if not states.isdisjoint(failures):
        return "fail"
    is_nothing_run = all(row.state == "skipped" or night_rows.node(row) for row in rows)
    if "unknown" in states or _is_uncompared(findings) or is_nothing_run:
        return "unknown"
    return "warn" if "warn" in states else "pass"


def _is_uncompared(findings: Sequence[Judged]) -> bool:
    """Return whether there are figures to compare, and not one was compared with anything."""
    return bool(_waiting(findings)) and not any(
        judged.finding.gate in _COMPARING and judged.state != "unknown" for judged in findings
    )


def _waiting(findings: Sequence[Judged]) -> list[Judged]:
    """The figures whose first night this is."""
    return [
        judged for judged in findings
        if judged.finding.gate == REFERENCE and judged.state == "unknown" and not judged.is_counted
    ]  # fmt: skip


def _exit(outcome: str, rows: Sequence[Row]) -> int:
    """Return the exit code. What the infrastructure broke cannot be judged, and comes first. A warning alone is no failure."""
    codes = {"fail": errors.EXIT_FINDING, "unknown": errors.EXIT_UNKNOWN}
    return night_rows.worst((night_rows.exit_code(rows), codes.get(outcome, errors.EXIT_PASS)))


def _sentence(outcome: str, rows: Sequence[Row], findings: Sequence[Judged], failures: Sequence[str]) -> str:
    counts = Counter(row.state for row in rows if not night_rows.node(row))
    lost = ", ".join(dict.fromkeys(filter(None, map(night_rows.node, rows))))
    ran = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
    states = failures if outcome == "fail" else () if outcome == "pass" else (outcome,)
    worst = [judged for judged in findings if judged.is_counted and judged.state in states]
    worst.sort(key=lambda judged: (judged.state == "warn", _rank(judged)))
    if worst:
        more = len(worst) - 1
        text = worst[0].finding.text + (f"; {more} more such finding{'s' * (more > 1)}" if more else "")
    elif not counts:
        text = "Nothing was run"
    elif outcome == "pass":
        is_compared = any(judged.state == "pass" for judged in findings)
        text = "No metric is worse than its reference" if is_compared else "No metric was compared"
    else:
        text = _FIRST if _is_uncompared(findings) else "Every repeat was skipped"
    is_strict = any(judged.state in failures and judged.state == "warn" for judged in worst)
    strict = "warnings count as failures (--fail-on warn)" if is_strict else ""
    parts = (text, strict, f"lost: {lost}" if lost else "", f"runs: {ran}" if ran else "")
    return "; ".join(filter(None, parts)) + "."


def _rank(judged: Judged) -> float:
    """Return the key that sorts findings: what is no ratio first, as a failed floor of a value that is 0; then the largest move."""
    excess = judged.compared.excess if judged.compared else None
    is_ratio = excess is not None or (judged.compared is not None and judged.state != "fail")
    return -(excess or 0.0) if is_ratio else -math.inf


_ORDER: tuple[State, ...] = ("passed", "failed", "unknown", "error", "unfinished", "skipped")
_FIRST = "Nothing to compare with yet: this night is the reference of the next ones"


def _history(findings: Sequence[Judged], night: str) -> str:
    """Say which metrics of which nodes have their first night; empty if everything that can be compared was."""
    waiting = _waiting(findings)
    if not waiting:
        return ""
    names = sorted({judged.finding.metric for judged in waiting})
    nodes = sorted({judged.finding.node or "all nodes" for judged in waiting})
    more = f"{len(names)} metrics" if len(names) > 1 else names[0]
    return f"reference set: {night} for {more} of {', '.join(nodes[:4])}{f' and {len(nodes) - 4} more' if len(nodes) > 4 else ''}"
