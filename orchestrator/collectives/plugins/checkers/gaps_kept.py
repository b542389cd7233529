"""A replay reached the gaps between its collectives: each within 1 ms, or 2 % of it."""

from __future__ import annotations

from .... import views
from ....model import events
from ....model.frozen import dataclass
from ....model.run import Run
from ....model.verdict import Verdict
from ....views import quantities

#: Without gaps the check is skipped.
SKIPS = True
NAME = "gaps-kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the check.

    share   share of the iterations whose gap must be reached; a busy machine delays a few starts
    """

    share: float = 0.95


def check(run: Run, params: Params) -> Verdict:
    """Judge by the step records of every rank: its start after the end, or the start, of the collective that the gap counts from.

    A rank that is still in the collective before starts at the end of that one: the network caused the longer gap.
    """
    from ... import views as collectives  # 16 modules that a run without collectives does not load
    from ...views import phrases

    setting = collectives.setting(run)
    doubts = [*views.not_ended(run.history), *views.not_started(run.history)]
    if setting is None:
        return views.conclude(NAME, "", doubts=[*doubts, views.finding("no rank reported a plan of the measurement")])
    gaps = collectives.replay_gaps(run, setting)
    if gaps is None:
        return Verdict(check=NAME, outcome="skipped", text="not checked: no collective has a gap")
    if len(gaps.measured) < gaps.wanted:
        doubts.append(views.finding(f"the records have {len(gaps.measured)} of {gaps.wanted} gaps"))
    failures = []
    if gaps.measured and gaps.kept < params.share * len(gaps.measured):
        text = f"{phrases.gaps(gaps)}; {quantities.percent(params.share)} are needed"
        failures.append(views.finding(text, run.history.last(events.CollectivePlan)))
    evidence = {"gaps": gaps.wanted, "kept": gaps.kept, "held": gaps.held}
    return views.conclude(NAME, phrases.gaps(gaps), failures=failures, doubts=doubts, evidence=evidence)
