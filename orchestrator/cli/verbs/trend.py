"""Show a metric over the recorded nights, by night and node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...app.places import short_path
from ...core.spec import values
from ...model import codec
from ...model.errors import EXIT_PASS, EXIT_UNKNOWN, CcbedError, UsageError
from ..inputs import completions, options, times
from ..inputs.session import Session
from ..render import trend_view

if TYPE_CHECKING:
    from ...nightly.index.entries import Trend
    from ...nightly.index.store import Index

_PICTURES = (".svg", ".png")
#: With more trends, the nights are left out.
_MOST_TABLES = 3


class UnknownTrendError(CcbedError):
    """No recorded night has the metric."""

    exit_code = EXIT_UNKNOWN


@options.command()
@click.argument("name", metavar="TRIAL|METRIC")
@click.option("--metric", default=None, help="A metric of the trial: its name, or the last words of it, such as busbw.")
@click.option("--since", default=None, metavar="TIME", help="Only nights since then: 30d, 12h, 2026-11-01.")
@click.option("--node", default=None, help="Only this node, and its links.")
@click.option("--bed", default=None, shell_complete=completions.beds, help="Only the nights of this bed.")
@options.runs_dir
@options.as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a line per night and node.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the trend: FILE.svg or FILE.png.")
@click.pass_obj
def command(
    session: Session, name: str, metric: str | None, since: str | None, node: str | None, bed: str | None, runs_dir: Path,
    as_json: bool, as_csv: bool, plot: Path | None,
) -> int:  # fmt: skip
    """Show the trend of a TRIAL's metrics, or of a METRIC of all trials, over recorded nights.

    Only values with equal hardware, workload and parameters share a trend.
    """
    from ...nightly import index

    if plot and plot.suffix not in _PICTURES:
        raise UsageError(f"--plot: must end with .svg or .png (got {plot})")
    since_s = times.since_s("--since", since, time.time())
    with index.open(runs_dir, state=session.state) as runs:
        session.terminal.status("reading bundles that changed …")
        runs.refresh()
        trends = runs.trend(name, metric, since_s=since_s, node=node, bed=bed)
        if not trends and metric is None:
            trends = runs.trend(None, name, since_s=since_s, node=node, bed=bed)
        notes = runs.notes
        if not trends:
            trend_view.warn(session.terminal, notes)
            raise _unknown(runs, name, metric, runs_dir)
    if plot:
        _plot(session, trends, plot, quiet=as_json or as_csv)
    if as_json:
        session.terminal.json({"trends": codec.plain(trends), "notes": notes})
    elif as_csv:
        session.terminal.lines(trend_view.csv_text(trends).splitlines())
    else:
        trend_view.warn(session.terminal, notes)
        trend_view.show(session.terminal, trends, by_night=len(trends) <= _MOST_TABLES)
    return EXIT_PASS


def _plot(session: Session, trends: tuple[Trend, ...], file: Path, *, quiet: bool) -> None:
    trend_view.draw(trends, file)
    if not quiet:
        session.terminal.line(f"drawn: {short_path(file)}")


def _unknown(runs: Index, name: str, metric: str | None, runs_dir: Path) -> UnknownTrendError:
    """Why there is no trend: no night, no such name, or filters that exclude all nights."""
    known = runs.metrics()
    if not known:
        return UnknownTrendError(
            f"{short_path(runs_dir)}: no recorded night with measurements yet", hint="ccbed nightly quick --record"
        )
    trials = {trial for trial, _ in known}
    metrics = {known_metric for trial, known_metric in known if name not in trials or trial == name}
    if name in trials and metric and not _is_metric(metric, metrics):
        return UnknownTrendError(f"{name}: no metric {metric} in recorded nights; {values.nearest(metric, metrics)}")
    if not runs.trend(name) and not runs.trend(None, name):
        return UnknownTrendError(
            f"{name}: no trial and no metric of recorded nights; {values.nearest(name, trials | metrics)}"
        )
    return UnknownTrendError(
        f"{name}: no recorded night matches --metric, --since, --node and --bed together",
        hint="ccbed runs lists the nights",
    )


def _is_metric(text: str, metrics: set[str]) -> bool:
    return any(metric == text or metric.endswith(f" {text}") for metric in metrics)
