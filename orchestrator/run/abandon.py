"""Runs whose orchestrator is gone: remove one that never began, judge one that has ended, abandon one that is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from ..model.bed import BedSpec
from ..model.event import Source, event
from ..model.events import RunEnd
from ..model.launch import Request
from ..model.plugin import Catalogue
from ..model.provider import Provider
from ..providers.node_files import node_limit
from ..store import bed_files, bundle, paths, seal
from ..store.journal import Journal, now
from . import drive, judging, preparation


def settle(bed: BedSpec, provider: Provider, catalogue: Catalogue, notify: Callable[[str], None]) -> None:
    """Remove a run that never began, judge one that has ended. Any other run stays open. Hold the lock of the bed's run.

    ``notify`` gets a sentence about what was done. Raises TornBundleError for a run that cannot be judged.
    """
    run = bed_files.open_run(Path(bed.workdir))
    if run is None:
        return
    try:
        _settle(bed, run, provider, catalogue, notify)
    except paths.TornBundleError as error:
        raise paths.TornBundleError(*error.problems, hint=f"abandon the run: ccbed heal {bed.name}") from error


def _settle(
    bed: BedSpec, run: bed_files.OpenRun, provider: Provider, catalogue: Catalogue, notify: Callable[[str], None]
) -> None:
    directory = Path(run.directory)
    stage = bundle.stage(directory)
    if stage == "none" and not run.begun and directory.name == run.run:
        preparation.discard(provider, bed, directory)
        notify(f"removed run {run.run}: its orchestrator died before the run began")
    elif stage == "ended" and not run.twin:
        if not bundle.is_sealed(directory) and bundle.is_twin_reused(directory):
            (directory / bundle.TWIN).unlink()  # whether the run passes with it was not known yet
        result = judging.finish(catalogue, directory, Path(bed.workdir), functools.partial(provider.sign, bed))
        notify(
            f"judged run {run.run}: its orchestrator died after the run had ended; "
            f"exit {result.code}; verdicts: ccbed check {directory}"
        )
    elif stage != "closed":
        return
    bed_files.end_run(Path(bed.workdir), run.run)


def collect_and_close(request: Request, directory: Path, reason: str) -> None:
    """Close an interrupted run whose gang is stopped: collect the files of its nodes first. Raises InfrastructureError.

    Without those files, its own evidence would seem to contradict it.
    """
    plan = bundle.load_plan(directory)
    for name in plan.nodes if bundle.has_begun(directory) else ():
        target = directory / "nodes" / name
        request.provider.fetch(name, f"runs/{plan.run}", target, node_limit())
        for file in drive.node_files(request, name):
            request.provider.fetch(name, file, target / file, node_limit())
    close(directory, Path(request.bed.workdir), reason, judging.signer(request))


def close(directory: Path, workdir: Path, reason: str, sign: judging.Sign | None = None) -> None:
    """Close an interrupted run with what was collected of it. ``workdir``: of its bed. Raises InfrastructureError."""
    if bundle.is_sealed(directory):
        return
    has_begun = bundle.has_begun(directory)
    end_history(directory, reason)
    if has_begun:
        judging.close(directory, workdir, *([sign] if sign else []))
    else:
        seal.seal(directory)


def end_history(directory: Path, reason: str) -> None:
    """Raises InfrastructureError when the journal cannot be written, or another process writes it."""
    with Journal(directory / bundle.HISTORY) as journal:
        end = RunEnd(outcome="interrupted", reason=reason, kind="")
        journal.append(event(end, at=now(), source=Source(writer="ctl", n=0)))
        journal.sync()
