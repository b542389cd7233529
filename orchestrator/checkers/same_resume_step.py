"""The earlier name of resumed-from: all ranks resumed from the same step."""

from __future__ import annotations

from dataclasses import replace

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training
from . import resumed_from


def check(run: Run, params: Params) -> Verdict:
    """Judge as resumed-from does; unknown for a script that was not restarted."""
    verdict = replace(resumed_from.check(run, params), check="same-resume-step")
    if verdict.outcome == "pass" and not training.lineage_of(run).starts:
        return views.unknown("same-resume-step", "no failover, no rank restored a state")
    return verdict
