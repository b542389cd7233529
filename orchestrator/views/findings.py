"""Findings of a checker, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model.event import Event, History
from ..model.frozen import dataclass
from ..model.verdict import Outcome, Verdict
from .gangs import gangs
from .overview import ending

#: The evidence of a verdict lists at most so many findings.
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason against a pass, and the events (``seq``) that show it."""

    text: str
    seqs: tuple[int, ...] = ()


def finding(text: str, *events: Event | None) -> Finding:
    return Finding(text=text, seqs=tuple(event.seq for event in events if event is not None))


def conclude(
    check: str, text: str, *,
    failures: Iterable[Finding] = (), doubts: Iterable[Finding] = (), evidence: Mapping[str, Any] | None = None,
) -> Verdict:  # fmt: skip
    """fail with the first failure, else unknown with the first doubt, else pass with ``text``."""
    failed, doubted = tuple(failures), tuple(doubts)
    if failed:
        return _verdict(check, "fail", failed, evidence)
    if doubted:
        return _verdict(check, "unknown", doubted, evidence)
    return Verdict(check=check, outcome="pass", text=text, evidence=dict(evidence or {}))


def unknown(check: str, text: str, *events: Event | None) -> Verdict:
    return conclude(check, "", doubts=[finding(text, *events)])


def not_ended(history: History) -> tuple[Finding, ...]:
    """The doubt about a run that has not ended; empty for others."""
    outcome, _, _ = ending(history)
    if outcome == "running":
        return (Finding(text="the run has not ended"),)
    if outcome == "interrupted":
        return (Finding(text="the run was interrupted and not resumed"),)
    return ()


def not_started(history: History) -> tuple[Finding, ...]:
    """The doubt about a run without any gang, of which every statement is true; empty for others."""
    return () if gangs(history) else (Finding(text="no worker group was started"),)


def _verdict(check: str, outcome: Outcome, findings: Sequence[Finding], evidence: Mapping[str, Any] | None) -> Verdict:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    listed = [{"text": item.text, "seq": list(item.seqs)} for item in findings[:LISTED]]
    return Verdict(
        check=check, outcome=outcome, text=findings[0].text + more, evidence={**(evidence or {}), "findings": listed}
    )
