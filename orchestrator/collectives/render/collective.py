"""The results of a collective run: the table, the fastest algorithms, the straggler, how percentiles are computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ... import views
from ...app.places import run_path
from ...model import codec, events
from ...model.run import Run
from .. import views as collectives
from ..views import comparisons, phrases, straggler_text, table

#: Rows of the table at the end of a run.
CASES = 24
#: Slow iterations that are listed with the whole table.
SLOW = 20


def lines(run: Run, directory: Path, *, whole: bool = False, width: int = 0) -> Iterator[str]:
    """Yield the lines; none for a run that measured no collectives. ``width``: that of the terminal, for the table."""
    measured = collectives.measured(run)
    if measured is None:
        return
    if not measured.trials:
        yield f"measured  {_kept(run, measured) or 'nothing: no iteration was gathered from all of its ranks'}"
        return
    yield f"link      {phrases.link(measured.setting)}"
    shown = measured if whole else table.largest(measured, CASES)
    yield from table.lines(shown, width)
    if len(shown.rows) < len(measured.rows):
        hidden = len(measured.rows) - len(shown.rows)
        yield f"          … {hidden} more of smaller sizes: ccbed report {run_path(directory)} --table"
    for number, text in enumerate(comparisons.autos(measured)):
        yield f"{'' if number else 'auto':<10}{text}"
    for text in comparisons.winners(measured.fastest):
        yield f"fastest   {text}"
    yield f"straggler {straggler_text.straggler(measured)}"
    yield f"slow      {straggler_text.slow_iterations(measured)}"
    if path := phrases.path(measured):
        yield f"time      {path}"
    yield from _slow(measured) if whole else ()
    if (gaps := collectives.replay_gaps(run, measured.setting)) is not None:
        yield f"gaps      {phrases.gaps(gaps)}"
    if bucket := phrases.bucket(measured.setting):
        yield f"bucket    {bucket}"
    if stops := phrases.stops(measured):
        yield f"precision {stops}"
    yield f"verified  {phrases.verified(run.history, measured)}"
    yield f"note      {phrases.percentiles(measured)}"


def _kept(run: Run, measured: collectives.Measured) -> str:
    """What `resume` keeps of a run that was interrupted, whose records stay on its nodes; empty for a run that has ended."""
    if run.history.last(events.RunInterrupted) is None or run.history.last(events.RunEnd):
        return ""
    resumes, cases = views.resume_steps(run.history), measured.setting.cases
    commits = [(event.epoch or 0, event.data.step or 0) for event in run.history.of(events.CheckpointCommit)]
    last = max((step for epoch, step in commits if views.is_kept(epoch, step, resumes)), default=0)
    if kept := sum(bool(case.steps) and case.steps[-1] <= last for case in cases):
        return f"{kept} of {len(cases)} cases, which are kept: resume goes on with the others and shows all"
    return f"none of {len(cases)} cases to its end, so nothing is kept: resume begins with the first"


def _slow(measured: collectives.Measured) -> Iterator[str]:
    """Yield the slow iterations, each with where its delay began."""
    slowest = sorted(measured.slow, key=lambda iteration: -iteration.seconds)[:SLOW]
    for iteration in slowest:
        yield f"          {phrases.slow(iteration, measured.setting)}"
    if hidden := measured.outliers - len(slowest):
        yield f"          … {hidden:,} more slow iteration{'s' * (hidden > 1)}: report/outliers.csv"


def document(run: Run) -> object:
    measured = collectives.measured(run)
    if measured is None:
        return None
    return {
        "rows": codec.plain(measured.rows),
        "link": codec.plain(measured.setting.link),
        "auto": codec.plain(measured.setting.autos),
        "fastest": codec.plain(measured.fastest),
        "slow": codec.plain(measured.slow),
        "held": measured.held,
        "late": codec.plain(measured.stragglers.late),
        "slow_links": codec.plain(measured.stragglers.links),
        "stopped": codec.plain(measured.stragglers.stopped),
        "critical_path_s": codec.plain(measured.path),
        "straggler": straggler_text.straggler(measured),
        "percentiles": collectives.DEFINITION,
    }
