"""The leftovers of ended runs, on nodes and on this machine: counted, and removed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.bed import prune as limits_of
from ..core.bed import selection
from ..core.spec import values
from ..model.bed import BedSpec
from ..model.errors import CcbedError, UsageError
from ..store import beds as store
from . import audited
from . import beds as bed_inputs
from .places import age, size
from .session import Session

if TYPE_CHECKING:
    from ..model.provider import Provider
    from ..run.pruning import Limits, Report
    from ..store.leftovers import LocalLeftover


def prune_automatically(session: Session, bed: BedSpec, runs_dir: Path | None = None) -> None:
    """Prune by the default limits after `up`, and after a run on this machine; print what was removed, but for its number."""
    from ..run.pruning import Limits

    report = prune(session, (bed,), Limits(age=age, size=size), runs_dir)
    removed = [item.leftover for item in report.removed if not item.reason.startswith(limits_of.TOO_MANY)]
    if removed and not session.is_json:
        count, size_text = total(removed)
        session.terminal.line(f"pruned {count} leftovers of ended runs, {size_text}     limits: ccbed prune --help")


def prune(
    session: Session, beds: Iterable[BedSpec], limits: Limits, runs_dir: Path | None = None, *,
    baselines: Path | None = None, dry_run: bool = False,
) -> Report:  # fmt: skip
    """Return what was removed, or in a dry run would be removed.

    ``baselines``: their directory, if runs and nights that neither they nor the gates need are removed as well.
    """
    from ..run import pruning
    from ..store import leftovers

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
        count, size_text = total(leftovers)
        audited.record(session, bed, f"prune: {count} leftovers, {size_text}", {host: audited.OK})


def of_runs(
    session: Session, runs_dir: Path, now: float, baselines: Path, *, recorded: bool
) -> tuple[LocalLeftover, ...]:
    """Return runs and nights, each with the reason to keep it. ``recorded``: those that gates compare with may go as well."""
    from ..nightly.index import retention
    from ..store import leftovers

    in_use = retention.reasons(runs_dir, baselines, recorded=recorded)
    return leftovers.of_runs(runs_dir, now, _open_runs(session), bundles=True, in_use=in_use)


def count_leftovers(bed: BedSpec, provider: Provider) -> dict[str, int] | None:
    """Return ``{count, size_bytes}`` of the leftovers of ended runs on a bed; None where they are not known."""
    from ..run import pruning

    try:
        listed = pruning.of_bed(bed, provider)
    except (CcbedError, OSError, ValueError, RuntimeError):
        return None
    return {"count": len(listed), "size_bytes": sum(leftover.size_bytes for leftover in listed)}


def beds_of(session: Session, name: str | None) -> tuple[BedSpec, ...]:
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


def total(leftovers: Iterable[limits_of.Leftover]) -> tuple[int, str]:
    sizes = [leftover.size_bytes for leftover in leftovers]
    return len(sizes), size(sum(sizes))
