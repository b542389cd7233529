"""Remove the leftovers of ended runs, on nodes and on this machine."""

from __future__ import annotations

from ...app import leftovers
from ...app.leftovers import PruneRequest
from ...app.places import age
from ...core.bed.prunable import Leftover
from ...model import requirements
from ..inputs import options
from ..inputs.terminal_session import Session


@options.shows(PruneRequest, leftovers.run)
def command(session: Session, pruned: leftovers.Pruned) -> None:
    """Remove the leftovers of ended runs on BED (without BED: on all beds), in the state directory, and beside runs.

    Files that an open run needs stay, and runs that a person named; without --runs every run stays.
    """
    show(session, pruned)


def show(session: Session, pruned: leftovers.Pruned) -> None:
    """Print what was removed, or would be."""
    terminal, report, dry_run = session.terminal, pruned.report, pruned.dry_run
    terminal.lines(_row(removal.leftover, removal.reason) for removal in report.removed)
    if dry_run:
        terminal.lines(_row(leftover, leftover.in_use or "kept") for leftover in report.remaining)
    for problem in report.problems:
        terminal.warn(problem)
    count, size_text = leftovers.total(removal.leftover for removal in report.removed)
    remaining, remaining_size = leftovers.total(report.remaining)
    verb = "would be removed" if dry_run else "removed"
    terminal.line(f"{count} leftovers, {size_text}, {verb}; {remaining}, {remaining_size}, kept")


def _row(leftover: Leftover, reason: str) -> str:
    columns = f"{leftover.kind:<14} {leftover.name:<44} {requirements.size_text(leftover.size_bytes):>9}  {age(leftover.age_s):>6}"
    return f"  {columns}  {leftover.location}: {reason}"
