"""The twin that the run is compared with had no fault and no restart."""

from __future__ import annotations

from dataclasses import dataclass

from .. import views
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By what the twin's own history counted."""
    twin = run.twin
    if twin is None:
        return views.unknown("baseline-clean", "no twin to compare with")
    broken = {"fault": twin.faults, "restart": twin.restarts}
    failures = [views.found(f"the twin {twin.run} had {n} {what}{'s' * (n != 1)}") for what, n in broken.items() if n]
    if twin.steps < 1:
        failures.append(views.found(f"the twin {twin.run} did no step"))
    return views.conclude(
        "baseline-clean", f"twin {twin.run}: {twin.steps} steps without a fault or restart", failures=failures
    )
