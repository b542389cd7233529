"""The reference run of the run had no fault and no restart, and did at least one step."""

from __future__ import annotations

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict

TWIN = True


def check(run: Run, params: Params) -> Verdict:
    """Judge by the faults, restarts and steps that the twin's history counts."""
    twin = run.twin
    if twin is None:
        return views.unknown("baseline-clean", "no reference run to compare with")
    interruptions = {"fault": twin.faults, "restart": twin.restarts}
    failures = [
        views.finding(f"the reference run {twin.run} had {count} {kind}{'s' * (count != 1)}")
        for kind, count in interruptions.items()
        if count
    ]
    if twin.steps < 1:
        failures.append(views.finding(f"the reference run {twin.run} did no step"))
    return views.conclude(
        "baseline-clean", f"reference run {twin.run}: {twin.steps} steps without a fault or restart", failures=failures
    )
