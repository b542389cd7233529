"""Remove the leftovers of ended runs, on nodes and on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.bed import prune as limits_of
from ...core.bed import selection
from ...core.spec import values
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, CcbedError, UsageError
from ...store import beds as store
from ..inputs import audited, options, times
from ..inputs import beds as bed_inputs
from ..inputs.session import Session
from ..render.terminal import age, size

if TYPE_CHECKING:
    from ...model.provider import Provider
    from ...run.pruning import Limits, Report
    from ...store.leftovers import LocalLeftover


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
    report = prune(
        session, _beds(session, bed), limits, runs_dir, baselines=baselines if runs else None, dry_run=dry_run
    )
    if as_json:
        session.terminal.json({**codec.plain(document(report)), "dry_run": dry_run})
    else:
        show(session, report, dry_run=dry_run)
    return EXIT_INFRASTRUCTURE if report.problems else EXIT_PASS


def automatic(session: Session, bed: BedSpec, runs_dir: Path | None = None, *, quiet: bool = False) -> None:
    """Prune by the default limits after `up`, and after a run on this machine; print what was removed, but for its number."""
    from ...run.pruning import Limits

    report = prune(session, (bed,), Limits(age=age, size=size), runs_dir)
    removed = [item.leftover for item in report.removed if not item.reason.startswith(limits_of.TOO_MANY)]
    if removed and not quiet:
        count, total = _sum(removed)
        session.terminal.line(f"pruned {count} leftovers of ended runs, {total}     limits: ccbed prune --help")


def prune(
    session: Session, beds: Iterable[BedSpec], limits: Limits, runs_dir: Path | None = None, *,
    baselines: Path | None = None, dry_run: bool = False,
) -> Report:  # fmt: skip
    """Return what was removed, or in a dry run would be removed.

    ``baselines``: their directory, if runs and nights that neither they nor the gates need are removed as well.
    """
    from ...run import pruning
    from ...store import leftovers

    report, now = pruning.Report(), time.time()
    for bed in map(bed_inputs.usable, beds):
        count = len(report.removed)
        pruning.prune_bed(report, bed, session.provider(bed), limits, dry_run=dry_run)
        if not dry_run:
            _record(session, bed, report.removed[count:])
    local = [*leftovers.of_state(session.state, now)]
    if runs_dir is not None:
        local += (
            of_runs(session, runs_dir, now, baselines, recorded=False)
            if baselines
            else leftovers.of_runs(runs_dir, now, _open_runs(session), bundles=False)
        )
    pruning.prune_local(report, local, limits, dry_run=dry_run)
    return report


def _record(session: Session, bed: BedSpec, removed: Iterable[limits_of.Removal]) -> None:
    """Add a line to the record of acts for each host from which something was removed."""
    by_host: dict[str, list[limits_of.Leftover]] = {}
    for removal in removed:
        host = removal.leftover.location.partition("/")[2] or selection.host_names(bed)[0]
        by_host.setdefault(host, []).append(removal.leftover)
    for host, leftovers in by_host.items():
        count, total = _sum(leftovers)
        audited.record(session, bed, f"prune: {count} leftovers, {total}", {host: audited.OK})


def of_runs(
    session: Session, runs_dir: Path, now: float, baselines: Path, *, recorded: bool
) -> tuple[LocalLeftover, ...]:
    """Return runs and nights, each with the reason to keep it. ``recorded``: those that gates compare with may go as well."""
    from ...nightly.index import retention
    from ...store import leftovers

    in_use = retention.reasons(runs_dir, baselines, recorded=recorded)
    return leftovers.of_runs(runs_dir, now, _open_runs(session), bundles=True, in_use=in_use)


def count_leftovers(bed: BedSpec, provider: Provider) -> dict[str, int] | None:
    """Return ``{count, size_bytes}`` of the leftovers of ended runs on a bed; None where they are not known."""
    from ...run import pruning

    try:
        listed = pruning.of_bed(bed, provider)
    except (CcbedError, OSError, ValueError, RuntimeError):
        return None
    return {"count": len(listed), "size_bytes": sum(leftover.size_bytes for leftover in listed)}


def _beds(session: Session, name: str | None) -> tuple[BedSpec, ...]:
    specs = (store.read(session.state, known) for known in ((name,) if name else store.names(session.state)))
    beds = tuple(spec for spec in specs if spec is not None)
    if name and not beds:
        raise UsageError(
            f"no bed {name} is up; {values.nearest(name, store.names(session.state))}", hint="ccbed status"
        )
    return beds


def _open_runs(session: Session) -> set[str]:
    specs = (store.read(session.state, name) for name in store.names(session.state))
    runs = (store.open_run(Path(spec.workdir)) for spec in specs if spec is not None)
    return {name for run in runs if run is not None for name in run.names}


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
    count, total = _sum(removal.leftover for removal in report.removed)
    remaining, remaining_size = _sum(report.remaining)
    verb = "would be removed" if dry_run else "removed"
    session.terminal.line(f"{count} leftovers, {total}, {verb}; {remaining}, {remaining_size}, kept")


def _row(leftover: limits_of.Leftover, reason: str) -> str:
    columns = f"{leftover.kind:<14} {leftover.name:<44} {size(leftover.size_bytes):>9}  {age(leftover.age_s):>6}"
    return f"  {columns}  {leftover.location}: {reason}"


def _sum(leftovers: Iterable[limits_of.Leftover]) -> tuple[int, str]:
    sizes = [leftover.size_bytes for leftover in leftovers]
    return len(sizes), size(sum(sizes))
