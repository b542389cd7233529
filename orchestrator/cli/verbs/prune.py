"""Remove the leftovers of ended runs, on nodes and on this machine."""

from __future__ import annotations

from ...app import leftovers
from ...app.leftovers import PruneRequest
from ...app.places import age, size
from ...core.bed.prune import Leftover, Report
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS
from ..inputs import options
from ..inputs.session import Session


@options.verb(PruneRequest)
def command(session: Session, request: PruneRequest) -> int:
    """Remove the leftovers of ended runs on BED (without BED: on all beds), in the state directory, and beside runs.

    Files that an open run needs stay, and runs that a person named; without --runs every run stays.
    """
    return show(session, leftovers.run(session, request), dry_run=request.dry_run)


def show(session: Session, report: Report, *, dry_run: bool) -> int:
    """Print what was removed, or would be. Returns the exit code."""
    terminal, code = session.terminal, EXIT_INFRASTRUCTURE if report.problems else EXIT_PASS
    if session.is_json:
        document = {"removed": report.removed, "kept": report.remaining, "problems": report.problems}
        terminal.json({**document, "dry_run": dry_run})
        return code
    terminal.lines(_row(removal.leftover, removal.reason) for removal in report.removed)
    if dry_run:
        terminal.lines(_row(leftover, leftover.in_use or "kept") for leftover in report.remaining)
    for problem in report.problems:
        terminal.warn(problem)
    count, size_text = leftovers.total(removal.leftover for removal in report.removed)
    remaining, remaining_size = leftovers.total(report.remaining)
    verb = "would be removed" if dry_run else "removed"
    terminal.line(f"{count} leftovers, {size_text}, {verb}; {remaining}, {remaining_size}, kept")
    return code


def _row(leftover: Leftover, reason: str) -> str:
    columns = f"{leftover.kind:<14} {leftover.name:<44} {size(leftover.size_bytes):>9}  {age(leftover.age_s):>6}"
    return f"  {columns}  {leftover.location}: {reason}"
