"""What a gate says of a node and a metric, with its evidence in one sentence."""

from __future__ import annotations

from typing import Literal

from ...model.frozen import dataclass

Outcome = Literal["pass", "warn", "fail", "unknown"]
#: The outcome that stands for several gates: the first of these that one of them has.
ORDER: tuple[Outcome, ...] = ("fail", "warn", "unknown", "pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``since``: the night in which it began. ``suspects``: versions that changed then. ``culprits``: the parts that are named."""

    gate: str
    outcome: Outcome
    text: str
    metric: str = ""
    node: str | None = None
    since: str | None = None
    suspects: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()


def worst(findings: tuple[Finding, ...]) -> Outcome:
    """Without a finding the outcome is unknown. One unknown gate beside passes leaves it unknown."""
    outcomes = {finding.outcome for finding in findings}
    return next((outcome for outcome in ORDER if outcome in outcomes), "unknown")
