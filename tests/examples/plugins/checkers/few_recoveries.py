"""The run recovered at most so many times."""

from __future__ import annotations

from dataclasses import dataclass

from .. import views
from ..model import events
from ..model.run import Run
from ..model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``limit``: recoveries that are accepted."""

    limit: int = 3


def check(run: Run, params: Params) -> Verdict:
    """By the decisions of the engine. A run that has not ended is unknown: it may recover again."""
    decisions = run.history.of(events.RecoveryDecided)
    count = f"recoveries: {len(decisions)}, limit {params.limit}"
    failures = [views.finding(count, *decisions)] if len(decisions) > params.limit else []
    return views.conclude("few-recoveries", count, failures=failures, doubts=views.not_ended(run.history))
