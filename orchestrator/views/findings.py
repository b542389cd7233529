"""What a checker found, and the verdict that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.event import Event, History
from ..model.verdict import Outcome, Verdict
from .gangs import gangs
from .overview import ending

#: So many findings are listed in the evidence of a verdict.
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One observation against a pass, and the events (``seq``) that show it."""

    text: str
    seqs: tuple[int, ...] = ()


def found(text: str, *events: Event | None) -> Finding:
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
    return conclude(check, "", doubts=[found(text, *events)])


def unended(history: History) -> tuple[Finding, ...]:
    """The doubt that a run which has not ended leaves."""
    outcome, _, _ = ending(history)
    if outcome == "running":
        return (Finding(text="the run has not ended"),)
    if outcome == "interrupted":
        return (Finding(text="the run was interrupted and not resumed"),)
    return ()


def unstarted(history: History) -> tuple[Finding, ...]:
    """The doubt that a run leaves in which nothing was ever started: about nothing, everything is true."""
    return () if gangs(history) else (Finding(text="no gang was started"),)


def _verdict(check: str, outcome: Outcome, findings: Sequence[Finding], evidence: Mapping[str, Any] | None) -> Verdict:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    listed = [{"text": one.text, "seq": list(one.seqs)} for one in findings[:LISTED]]
    return Verdict(
        check=check, outcome=outcome, text=findings[0].text + more, evidence={**(evidence or {}), "findings": listed}
    )
