"""No iteration of a collective took less time than its bytes need on the busiest link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .... import views
from ....model import events
from ....model.plugin import NoParams as Params
from ....model.run import Run
from ....model.verdict import Verdict
from ....views import quantities
from ....views.event_order import DRIFT

if TYPE_CHECKING:
    from ... import views as collectives

#: Without a known rate the check is skipped.
SKIPS = True
NAME = "times-possible"
#: Rates and clocks are exact to this part.
TOLERANCE = 0.001


def check(run: Run, params: Params) -> Verdict:
    """Judge by the time from the first start to the last end; the uncertainty of clocks between hosts is added to it."""
    from ... import views as collectives  # 16 modules that a run without collectives does not load
    from ...views import phrases

    measured = collectives.measured(run)
    doubts = [*views.not_ended(run.history), *views.not_started(run.history)]
    if measured is None or doubts:
        return views.conclude(NAME, "", doubts=doubts or [views.finding("no rank reported a measurement")])
    bounds = {row.case.number: collectives.lower_bound(measured.setting, row.case) for row in measured.rows}
    known = [row for row in measured.rows if bounds[row.case.number] is not None]
    doubts = [
        views.finding(f"{phrases.case(row.case)}: {row.lost} iterations were not recorded") for row in known if row.lost
    ]
    failures = [
        finding
        for row in known
        for finding in _too_fast(run, measured, row.case, phrases.case(row.case), bounds[row.case.number])
    ]
    if not known:
        text = "not checked: no rate of a link is known, or no case has more bytes than a link passes at once"
        return Verdict(check=NAME, outcome="skipped", text=text)
    text = (
        f"{len(known)} of {len(measured.rows)} cases took at least the time that their bytes need on the busiest link"
    )
    return views.conclude(NAME, text, failures=failures, doubts=doubts, evidence={"cases": len(known)})


def _too_fast(
    run: Run, measured: collectives.Measured, case: collectives.Case, name: str, bound: collectives.Bound | None
) -> Iterator[views.Finding]:
    spans = measured.data[case.number][0]
    if bound is None or not len(spans.trials):
        return
    times = spans.times("cct") + _uncertainty_s(run, measured.setting, case, float(spans.start.max()))
    shortest = int(times.argmin())
    if times[shortest] < bound.seconds * (1 - TOLERANCE):
        yield views.finding(
            f"{name}: iteration {spans.trials[shortest]} took {quantities.milliseconds(float(times[shortest]))} ms; "
            f"{bound.payload:,} bytes need at least {quantities.milliseconds(bound.seconds)} ms on {bound.link} "
            f"({quantities.rate(bound.rate)}): the time is wrong, or the bytes took another path",
            run.history.last(events.CollectivePlan),
        )


def _uncertainty_s(run: Run, setting: collectives.Setting, case: collectives.Case, at: float) -> float:
    """Return how much two clocks of the case's ranks may differ from their measured offset; 0 where they share a clock."""
    readings = {setting.clocks.get(rank, (0.0, 0.0)) for rank in case.ranks}
    if len(readings) < 2:
        return 0.0
    since = abs(at - views.clocks(run.history).mono)
    return float(sum(sorted(uncertainty_s for _, uncertainty_s in readings)[-2:]) + 2 * DRIFT * since)
