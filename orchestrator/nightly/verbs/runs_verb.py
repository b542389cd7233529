"""List all runs: when, bed, trial, outcome, time to recover, duration; prune them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...app import leftovers, requests
from ...app.leftovers import PruneRunsRequest
from ...app.places import short_path
from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ...cli.verbs.prune_verb import show as show_pruned
from ...model.errors import EXIT_PASS
from ..app import recorded_runs
from ..app.recorded_runs import RunsRequest
from ..render import trend_view

if TYPE_CHECKING:
    from ..index.entries import RunEntry

_HEAD = ("RUN", "WHEN", "BED", "TRIAL", "OUTCOME", "RECOVERY", "DURATION", "NIGHT")


@options.group(invoke_without_command=True)
@options.of_request(RunsRequest)
@options.as_json
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """List runs, the newest last, also those in nights; without COMMAND nothing is removed."""
    return EXIT_PASS if ctx.invoked_subcommand else _list(ctx.obj, requests.build(RunsRequest, values))


def _list(session: Session, request: RunsRequest) -> int:
    terminal, listed = session.terminal, recorded_runs.runs(session, request)
    if session.is_json:
        terminal.json(listed)
        return EXIT_PASS
    trend_view.warn(terminal, listed.notes)
    if not listed.runs:
        terminal.line(f"no {'such ' if request.is_filtered else ''}runs in {short_path(request.runs_dir)}")
        return EXIT_PASS
    terminal.table(_HEAD, map(_row, listed.runs))
    if listed.count > len(listed.runs):
        terminal.line(f"the newest {len(listed.runs)} of {listed.count:,} runs     all: --limit 0")
    return EXIT_PASS


def _row(entry: RunEntry) -> tuple[str, ...]:
    night = entry.night.rpartition("-")[2]
    return (
        entry.run.rpartition("-")[2], entry.started.replace("T", " ").removesuffix("Z"), entry.bed, entry.trial, entry.outcome,
        _time(entry.ttr_s), _time(entry.duration_s), f"{night} {entry.cell}" if entry.cell else night,
    )  # fmt: skip


def _time(value: float | None) -> str:
    """Empty where the run has none, or it is not known."""
    return "" if value is None else f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


@options.shows(PruneRunsRequest, leftovers.prune_runs, below=command)
def prune(session: Session, pruned: leftovers.Pruned) -> None:
    """Remove old runs and nights, but never the evidence of a baseline. A night is removed or kept with all its runs."""
    show_pruned(session, pruned)
