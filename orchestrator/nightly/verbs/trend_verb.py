"""Show a metric over the recorded nights, by night and node."""

from __future__ import annotations

from ...app.places import short_path
from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ...model.errors import EXIT_PASS
from ..app import recorded_runs
from ..app.recorded_runs import TrendRequest
from ..render import trend_view

#: With more trends, the nights are left out.
_MOST_TABLES = 3


@options.verb(TrendRequest)
def command(session: Session, request: TrendRequest) -> int:
    """Show the trend of a TRIAL's metrics, or of a METRIC of all trials, over recorded nights: the table of the newest one, worst first,
    in percent of the reference and beside the limit; then the values of each night.

    Only values with equal hardware, workload and parameters share a trend.
    """
    terminal, known = session.terminal, recorded_runs.trends(session, request)
    if known.error:
        trend_view.warn(terminal, known.notes)
        raise known.error
    if request.plot:
        trend_view.draw(known.trends, request.plot)
        if not (session.is_json or request.as_csv):
            terminal.line(f"drawn: {short_path(request.plot)}")
    if session.is_json:
        terminal.json({"trends": known.trends, "notes": known.notes})
    elif request.as_csv:
        terminal.lines(trend_view.csv_text(known.trends).splitlines())
    else:
        trend_view.warn(terminal, known.notes)
        judged = {entry.finding.metric for _, judgement in known.newest for entry in judgement.cells}
        is_many = len(known.trends) > _MOST_TABLES and bool(judged)
        listed = [trend for trend in known.trends if not is_many or trend.metric.name in judged]
        trend_view.show(terminal, listed, known.newest, by_night=not is_many or len(listed) <= _MOST_TABLES)
    return EXIT_PASS
