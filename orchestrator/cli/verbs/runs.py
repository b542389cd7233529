"""List all runs: when, bed, trial, outcome, time to recover, duration; prune them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...app.places import age, short_path
from ...model import codec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, UsageError
from ..inputs import completions, options, times
from ..inputs.session import Session
from ..render import trend_view

if TYPE_CHECKING:
    from ...nightly.index.entries import RunEntry
    from ...store.leftovers import LocalLeftover

_HEAD = ("RUN", "WHEN", "BED", "TRIAL", "OUTCOME", "RECOVERY", "DURATION", "NIGHT")


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"},
)
@click.option("--bed", default=None, shell_complete=completions.beds, help="Only the runs on this bed.")
@click.option("--trial", default=None, help="Only the runs of this trial.")
@click.option("--outcome", default=None, help="Only runs with this outcome: pass, fail, unknown, open, …")
@click.option("--since", default=None, metavar="TIME", help="Only runs since then: 30d, 12h, 2026-11-01.")
@click.option("--night", default=None, help="Only the runs of this night: its directory, or the end of its name.")
@click.option("--limit", type=click.IntRange(min=0), default=30, show_default=True, help="The newest N; 0: all.")
@click.option("--rebuild", is_flag=True, help="Make the index again from all bundles first.")
@options.runs_dir
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, bed: str | None, trial: str | None, outcome: str | None, since: str | None, night: str | None,
    limit: int, rebuild: bool, runs_dir: Path, as_json: bool,
) -> int:  # fmt: skip
    """List runs, the newest last, also those in nights; without COMMAND nothing is removed."""
    if ctx.invoked_subcommand:
        return EXIT_PASS
    from ...nightly import index

    session: Session = ctx.obj
    since_s = times.since_s("--since", since, time.time())
    with index.open(runs_dir, state=session.state) as runs:
        session.terminal.status("reading bundles …" if rebuild else "reading bundles that changed …")
        _ = runs.rebuild() if rebuild else runs.refresh()
        entries, count = runs.runs(
            bed=bed, trial=trial, outcome=outcome, since_s=since_s, night=night, limit=limit or None
        )
        notes = runs.notes
    if as_json:
        session.terminal.json({"runs": codec.plain(entries), "count": count, "notes": notes})
        return EXIT_PASS
    trend_view.warn(session.terminal, notes)
    is_filtered = any(value is not None for value in (bed, trial, outcome, since, night))
    if not entries:
        session.terminal.line(f"no {'such ' if is_filtered else ''}runs in {short_path(runs_dir)}")
        return EXIT_PASS
    session.terminal.table(_HEAD, [_row(entry) for entry in entries])
    if count > len(entries):
        session.terminal.line(f"the newest {len(entries)} of {count:,} runs     all: --limit 0")
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


@command.command(context_settings={"auto_envvar_prefix": "CCBED"})
@click.option("--keep", default=None, metavar="TIME", help="Keep the runs and nights of this time: 30d, 12h.")
@click.option(
    "--keep-last", type=click.IntRange(min=1), default=None, metavar="N", help="Keep the newest N runs and nights."
)
@click.option("--recorded", is_flag=True, help="Also remove recorded nights that gates still compare with.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed and what would stay, and stop.")
@options.baselines
@options.runs_dir
@options.as_json
@click.pass_obj
def prune(
    session: Session,
    keep: str | None,
    keep_last: int | None,
    recorded: bool,
    dry_run: bool,
    baselines: Path,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Remove old runs and nights, but never the evidence of a baseline. A night is removed or kept with all its runs."""
    from ...app import leftovers
    from ...run import pruning
    from . import prune as pruned

    if (keep is None) == (keep_last is None):
        raise UsageError("give --keep TIME or --keep-last N", hint="ccbed runs prune --keep 30d --dry-run")
    limits = pruning.Limits(older_than_s=times.age_s("--keep", keep) if keep else 0.0, keep_bytes=sys.maxsize, age=age)
    listed = leftovers.of_runs(session, runs_dir, time.time(), baselines, recorded=recorded)
    report = pruning.Report()
    pruning.prune_local(report, _keep_newest(listed, keep_last or 0), limits, dry_run=dry_run)
    if as_json:
        session.terminal.json({**codec.plain(pruned.document(report)), "dry_run": dry_run})
    else:
        pruned.show(session, report, dry_run=dry_run)
    return EXIT_INFRASTRUCTURE if report.problems else EXIT_PASS


def _keep_newest(listed: Sequence[LocalLeftover], count: int) -> list[LocalLeftover]:
    """By their names, which begin with the time."""
    newest = {id(local) for local in sorted(listed, key=lambda local: local.path.name)[-count:]} if count else set()
    return [
        replace(local, leftover=replace(local.leftover, in_use=local.leftover.in_use or f"among the newest {count}"))
        if id(local) in newest
        else local
        for local in listed
    ]
