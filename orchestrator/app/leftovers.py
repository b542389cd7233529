"""The leftovers of ended runs, on nodes and on this machine: counted, and removed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.bed import prunable as limits_of
from ..core.bed import selection
from ..core.bed.prunable import Report
from ..core.spec import written_values
from ..model import requirements
from ..model.bed import BedSpec
from ..model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, CcbedError, UsageError
from ..model.frozen import dataclass, replace
from ..store import bed_files as store
from . import audited
from . import beds as bed_inputs
from .places import age, age_s
from .requests import argument, baselines_directory, option, runs_directory
from .session import Session

if TYPE_CHECKING:
    from ..model.provider import Provider
    from ..run.pruning import Limits
    from ..store.controller_leftovers import LocalLeftover


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """The request of `ccbed prune`. ``bed``: None for all beds."""

    bed: str | None = argument(None, completes="beds")
    dry_run: bool = option(False, "Print what would be removed and what would stay, and stop.")
    older_than: str = option("7d", "Remove leftovers that are older: 7d, 12h.", metavar="TIME")
    keep_size: str = option("20g", "Keep this much on each host and in each directory.", metavar="SIZE")
    runs: bool = option(False, "Also remove result bundles and closed runs of the runs directory.")
    keep: int | None = option(None, "With --runs: keep the newest N runs, and nights, at most.", metavar="N", least=1)
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRunsRequest:
    """The request of `ccbed runs prune`."""

    keep: str | None = option(None, "Keep the runs and nights of this time: 30d, 12h.", metavar="TIME")
    keep_last: int | None = option(None, "Keep the newest N runs and nights.", metavar="N", least=1)
    recorded: bool = option(False, "Also remove recorded nights that gates still compare with.")
    dry_run: bool = option(False, "Print what would be removed and what would stay, and stop.")
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of a cleanup: what was removed and kept; ``dry_run``: nothing was, it is what would be."""

    report: Report
    dry_run: bool

    @property
    def code(self) -> int:
        return EXIT_INFRASTRUCTURE if self.report.problems else EXIT_PASS

    @property
    def document(self) -> object:
        report = self.report
        document = {"removed": report.removed, "kept": report.remaining, "problems": report.problems}
        return {**document, "dry_run": self.dry_run}


def run(session: Session, request: PruneRequest) -> Pruned:
    """Remove the leftovers of ended runs on a bed or on all, in the state directory, and beside runs. Raises UsageError."""
    from ..run.pruning import Limits

    older_than_s = age_s("--older-than", request.older_than)
    try:
        keep_bytes = written_values.size(request.keep_size)
    except ValueError as error:
        raise UsageError(f"--keep-size: {error} (got {request.keep_size})") from None
    limits = Limits(
        older_than_s=older_than_s, keep_bytes=keep_bytes, keep=request.keep, age=age, size=requirements.size_text
    )
    baselines = request.baselines if request.runs else None
    beds = beds_of(session, request.bed)
    report = prune(session, beds, limits, request.runs_dir, baselines=baselines, dry_run=request.dry_run)
    return Pruned(report=report, dry_run=request.dry_run)


def prune_runs(session: Session, request: PruneRunsRequest) -> Pruned:
    """Remove old runs and nights, but never the evidence of a baseline. Raises UsageError."""
    from ..run import pruning

    keep, count = request.keep, request.keep_last or 0
    if (keep is None) == (request.keep_last is None):
        raise UsageError("give --keep TIME or --keep-last N", hint="ccbed runs prune --keep 30d --dry-run")
    limits = pruning.Limits(older_than_s=age_s("--keep", keep) if keep else 0.0, keep_bytes=sys.maxsize, age=age)
    listed = of_runs(session, request.runs_dir, time.time(), request.baselines, recorded=request.recorded)
    report = Report()
    pruning.prune_local(report, _keep_newest(listed, count), limits, dry_run=request.dry_run)
    return Pruned(report=report, dry_run=request.dry_run)


def _keep_newest(listed: Sequence[LocalLeftover], count: int) -> list[LocalLeftover]:
    """Protect the newest by their names, which begin with the time."""
    newest = {id(local) for local in sorted(listed, key=lambda local: local.path.name)[-count:]} if count else set()
    return [
        replace(local, leftover=replace(local.leftover, in_use=local.leftover.in_use or f"among the newest {count}"))
        if id(local) in newest
        else local
        for local in listed
    ]


def prune_automatically(session: Session, bed: BedSpec, runs_dir: Path | None = None) -> None:
    """Prune by the default limits after `up`, and after a run on this machine; print what was removed, but for its number."""
    from ..run.pruning import Limits

    report = prune(session, (bed,), Limits(age=age, size=requirements.size_text), runs_dir)
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
    from ..store import controller_leftovers

    report, now = Report(), time.time()
    for bed in map(bed_inputs.usable, beds):
        count = len(report.removed)
        pruning.prune_bed(report, bed, session.provider(bed), limits, dry_run=dry_run)
        if not dry_run:
            _record(session, bed, report.removed[count:])
    local = [*controller_leftovers.of_state(session.state, now)]
    if runs_dir is not None:
        local += (
            of_runs(session, runs_dir, now, baselines, recorded=False)
            if baselines
            else controller_leftovers.of_runs(runs_dir, now, _open_runs(session), bundles=False)
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
    from ..store import controller_leftovers
    from . import nights

    in_use = nights.product().kept_runs(runs_dir, baselines, recorded=recorded) if nights.is_installed() else {}
    return controller_leftovers.of_runs(runs_dir, now, _open_runs(session), bundles=True, in_use=in_use)


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
            f"no bed {name} is up; {written_values.nearest(name, store.names(session.state))}", hint="ccbed status"
        )
    return beds


def _open_runs(session: Session) -> set[str]:
    specs = (store.read(session.state, name) for name in store.names(session.state))
    runs = (store.open_run(Path(spec.workdir)) for spec in specs if spec is not None)
    return {name for run in runs if run is not None for name in run.names}


def total(leftovers: Iterable[limits_of.Leftover]) -> tuple[int, str]:
    sizes = [leftover.size_bytes for leftover in leftovers]
    return len(sizes), requirements.size_text(sum(sizes))
