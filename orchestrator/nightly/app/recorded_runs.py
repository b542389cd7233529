"""All recorded runs and nights, from their index: the list of runs, and the trends of metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...app import places
from ...app.places import short_path
from ...app.requests import argument, option, runs_directory
from ...app.session import Session
from ...core.spec import written_values
from ...model.errors import EXIT_UNKNOWN, CcbedError, UsageError
from ...model.frozen import dataclass, replace

if TYPE_CHECKING:
    from ..index.entries import NightEntry, RunEntry, Trend
    from ..index.store import Index
    from ..night_judgement import NightJudgement
    from ..suite import Night

_PICTURES = (".svg", ".png")


class UnknownTrendError(CcbedError):
    """No recorded night has the metric."""

    exit_code = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRequest:
    """The request of `ccbed runs`."""

    bed: str | None = option(None, "Only the runs on this bed.", completes="beds")
    trial: str | None = option(None, "Only the runs of this trial.")
    outcome: str | None = option(None, "Only runs with this outcome: pass, fail, unknown, open, …")
    since: str | None = option(None, "Only runs since then: 30d, 12h, 2026-11-01.", metavar="TIME")
    night: str | None = option(None, "Only the runs of this night: its directory, or the end of its name.")
    limit: int = option(30, "The newest N; 0: all.", least=0)
    rebuild: bool = option(False, "Make the index again from all bundles first.")
    runs_dir: Path = runs_directory()

    @property
    def is_filtered(self) -> bool:
        return any(value is not None for value in (self.bed, self.trial, self.outcome, self.since, self.night))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The newest runs, how many there are, and notes of the index."""

    runs: tuple[RunEntry, ...]
    count: int
    notes: tuple[str, ...]


def runs(session: Session, request: RunsRequest) -> Runs:
    """List recorded runs, the newest last. Raises UsageError, InfrastructureError."""
    from .. import index

    since_s = places.since_s("--since", request.since, time.time())
    with index.open(request.runs_dir, state=session.state) as opened:
        session.terminal.status("reading bundles …" if request.rebuild else "reading bundles that changed …")
        _ = opened.rebuild() if request.rebuild else opened.refresh()
        entries, count = opened.runs(
            bed=request.bed, trial=request.trial, outcome=request.outcome, since_s=since_s, night=request.night,
            limit=request.limit or None,
        )  # fmt: skip
        return Runs(runs=tuple(entries), count=count, notes=tuple(opened.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRequest:
    """The request of `ccbed trend`."""

    name: str = argument(metavar="TRIAL|METRIC")
    metric: str | None = option(None, "A metric of the trial: its name, or the last words of it, such as busbw.")
    since: str | None = option(None, "Only nights since then: 30d, 12h, 2026-11-01.", metavar="TIME")
    node: str | None = option(None, "Only this node, and its links.")
    bed: str | None = option(None, "Only the nights of this bed.", completes="beds")
    runs_dir: Path = runs_directory()
    as_csv: bool = option(False, "Print CSV: a line per night and node.", flags=("--csv",))
    plot: Path | None = option(None, "Draw the trend: FILE.svg or FILE.png.", is_file=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Trends, and notes of the index. ``newest``: the newest night of each bed, with what it says of these trends. ``error``: why there
    is none.
    """

    trends: tuple[Trend, ...]
    notes: tuple[str, ...]
    newest: tuple[tuple[Night, NightJudgement], ...] = ()
    error: CcbedError | None = None


def trends(session: Session, request: TrendRequest) -> Trends:
    """Return the trends of a trial's metrics, or of a metric of all trials. Raises UsageError, InfrastructureError."""
    from .. import index

    if request.plot and request.plot.suffix not in _PICTURES:
        raise UsageError(f"--plot: must end with .svg or .png (got {request.plot})")
    since_s, node, bed = places.since_s("--since", request.since, time.time()), request.node, request.bed
    with index.open(request.runs_dir, state=session.state) as opened:
        session.terminal.status("reading bundles that changed …")
        opened.refresh()
        matching = opened.trend(request.name, request.metric, since_s=since_s, node=node, bed=bed)
        if not matching and request.metric is None:
            matching = opened.trend(None, request.name, since_s=since_s, node=node, bed=bed)
        error = None if matching else _unknown(opened, request)
        newest = tuple(_newest(opened.nights(), matching))
        return Trends(trends=matching, notes=opened.notes, newest=newest, error=error)


def _newest(nights: Iterable[NightEntry], matching: Iterable[Trend]) -> Iterator[tuple[Night, NightJudgement]]:
    """The newest judged night of each bed, with its findings on these trends. One that cannot be read is a note of the index."""
    from .. import night_files
    from ..night_judgement import FLEET

    figures = {(trend.bed, trend.metric.name, trend.key, node) for trend in matching for node in trend.nodes}
    metrics = {figure[:3] for figure in figures}
    by_bed = {
        entry.bed: entry for entry in sorted(nights, key=lambda entry: entry.number) if entry.number and entry.outcome
    }
    for bed, entry in sorted(by_bed.items()):
        with suppress(CcbedError, OSError):
            judgement = night_files.read_judgement(Path(entry.directory))
            findings = [
                judged for judged in (judgement.findings if judgement else ())
                if (bed, judged.finding.metric, judged.key, judged.finding.node or "") in figures
                or (judged.finding.gate == FLEET and (bed, judged.finding.metric, judged.key) in metrics)
            ]  # fmt: skip
            if judgement and findings:
                yield night_files.read_night(Path(entry.directory)), replace(judgement, findings=tuple(findings))


def _unknown(runs: Index, request: TrendRequest) -> UnknownTrendError:
    """Return why there is no trend: no night, no such name, or filters that exclude all nights."""
    known, name = sorted({(trend.trial, trend.metric.name) for trend in runs.trend()}), request.name
    if not known:
        return UnknownTrendError(
            f"{short_path(request.runs_dir)}: no recorded night with measurements yet",
            hint="ccbed nightly quick --record",
        )
    trials = {trial for trial, _ in known}
    metrics = {metric for trial, metric in known if name not in trials or trial == name}
    recorded = runs.trend(name) or runs.trend(None, name)
    if not recorded:
        near = written_values.nearest(name, trials | metrics)
        return UnknownTrendError(f"{name}: no trial and no metric of recorded nights; {near}")
    nodes, beds = _nodes(recorded), {trend.bed for trend in recorded}
    for kind, text, names in (
        ("metric", request.metric, metrics),
        ("node", request.node, nodes),
        ("bed", request.bed, beds),
    ):
        if text and not any(recorded_name == text or recorded_name.endswith(f" {text}") for recorded_name in names):
            return UnknownTrendError(
                f"{name}: no {kind} {text} in recorded nights; {written_values.nearest(text, names)}"
            )
    return UnknownTrendError(
        f"{name}: no recorded night matches --metric, --since, --node and --bed together",
        hint="ccbed runs lists the nights",
    )


def _nodes(recorded: Iterable[Trend]) -> set[str]:
    """The nodes, and their ranks, that trends are of, or of links from or to them."""
    ends = {end for trend in recorded for label in trend.nodes for end in label.split("->") if end}
    return ends | {end.partition(":")[0] for end in ends}
