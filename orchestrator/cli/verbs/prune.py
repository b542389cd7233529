"""Remove the leftovers of ended runs, on nodes and on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...app import leftovers
from ...app.places import age, size
from ...core.bed import prune as limits_of
from ...core.spec import values
from ...model import codec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, UsageError
from ..inputs import options, times
from ..inputs.session import Session

if TYPE_CHECKING:
    from ...run.pruning import Report


@options.command()
@options.of_bed()
@click.option("--dry-run", is_flag=True, help="Print what would be removed and what would stay, and stop.")
@click.option(
    "--older-than", default="7d", show_default=True, metavar="TIME", help="Remove leftovers that are older: 7d, 12h."
)
@click.option(
    "--keep-size",
    default="20g",
    show_default=True,
    metavar="SIZE",
    help="Keep this much on each host and in each directory.",
)
@click.option("--runs", is_flag=True, help="Also remove sealed bundles and closed runs of the runs directory.")
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="With --runs: keep the newest N runs, and nights, at most."
)
@options.baselines
@options.runs_dir
@options.as_json
@click.pass_obj
def command(
    session: Session, bed: str | None, dry_run: bool, older_than: str, keep_size: str, runs: bool,
    keep: int | None, baselines: Path, runs_dir: Path, as_json: bool,
) -> int:  # fmt: skip
    """Remove the leftovers of ended runs on BED (without BED: on all beds), in the state directory, and beside runs.

    Files that an open run needs stay, and runs that a person named; without --runs every run stays.
    """
    from ...run.pruning import Limits

    limits = Limits(
        older_than_s=times.age_s("--older-than", older_than), keep_bytes=_size(keep_size), keep=keep, age=age, size=size
    )
    report = leftovers.prune(
        session,
        leftovers.beds_of(session, bed),
        limits,
        runs_dir,
        baselines=baselines if runs else None,
        dry_run=dry_run,
    )
    if as_json:
        session.terminal.json({**codec.plain(document(report)), "dry_run": dry_run})
    else:
        show(session, report, dry_run=dry_run)
    return EXIT_INFRASTRUCTURE if report.problems else EXIT_PASS


def _size(text: str) -> int:
    try:
        return values.size(text)
    except ValueError as error:
        raise UsageError(f"--keep-size: {error} (got {text})") from None


def document(report: Report) -> dict[str, object]:
    return {"removed": report.removed, "kept": report.remaining, "problems": report.problems}


def show(session: Session, report: Report, *, dry_run: bool) -> None:
    session.terminal.lines(_row(removal.leftover, removal.reason) for removal in report.removed)
    if dry_run:
        session.terminal.lines(_row(leftover, leftover.in_use or "kept") for leftover in report.remaining)
    for problem in report.problems:
        session.terminal.warn(problem)
    count, size_text = leftovers.total(removal.leftover for removal in report.removed)
    remaining, remaining_size = leftovers.total(report.remaining)
    verb = "would be removed" if dry_run else "removed"
    session.terminal.line(f"{count} leftovers, {size_text}, {verb}; {remaining}, {remaining_size}, kept")


def _row(leftover: limits_of.Leftover, reason: str) -> str:
    columns = f"{leftover.kind:<14} {leftover.name:<44} {size(leftover.size_bytes):>9}  {age(leftover.age_s):>6}"
    return f"  {columns}  {leftover.location}: {reason}"
