"""Resume a run whose orchestrator was interrupted or died."""

from __future__ import annotations

import os
from pathlib import Path

from ..model.bed import BedSpec
from ..model.errors import UsageError
from ..model.event import History
from ..model.events import RunEnd
from ..model.frozen import dataclass
from ..model.launch import Result
from ..model.plan import Plan
from ..run import judging
from ..store import bed_files as store
from ..store import bundle, index, paths
from . import announcement, audited, bed_job, beds, check, heal, observers
from .places import short_path
from .requests import named_run, option, runs_directory
from .session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """The request of `ccbed resume`. ``run``: None for that of the last `ccbed run` of this shell, or the only open one."""

    run: str | None = named_run(None)
    close: bool = option(
        False, "End the run where it is, undo its faults, and judge what there is: its bed is free then."
    )
    runs_dir: Path = runs_directory()


def run(session: Session, request: ResumeRequest) -> Result | Path:
    """Resume a run where its history ends, or judge one that has ended; return the directory where it is that of several runs.

    Raises UsageError, InfrastructureError, TornBundleError.
    """
    open_run = _open_run if request.close else last_run
    name = request.run or open_run(session, request.runs_dir)
    if several := index.night(name, request.runs_dir):
        return several
    directory = _requested_run(index.resolve(name, request.runs_dir))
    history = bundle.read_history(directory)
    end = history.last(RunEnd)
    if end is not None and end.data.outcome == "interrupted":
        raise UsageError(
            f"{short_path(directory)}: the run is closed: {end.data.reason}",
            hint=f"run it again: ccbed run {short_path(directory)}/trial.json",
        )
    plan = bundle.load_plan(directory)
    bed = beds.read(session, plan.bed)
    if bundle.stage(directory) == "closed":
        check.verify(directory)
        if bed is not None:
            beds.settle(session, bed)
        return judging.conclude(session.catalogue, directory, read_only=True)
    if bed is None and end is not None:
        return judging.finish(session.catalogue, directory)
    if bed is None:
        raise UsageError(
            f"bed {plan.bed} of this run is no longer up", hint=f"run it again: ccbed run {directory}/trial.json"
        )
    if request.close:
        heal.heal(session, bed)
        return judging.conclude(session.catalogue, directory, read_only=True)
    return _continue(session, bed, plan, directory, history)


def _continue(session: Session, bed: BedSpec, plan: Plan, directory: Path, history: History) -> Result:
    trial = bundle.load_trial(directory)
    observer = session.follow.resumed(session, trial, plan.slots, history)
    with bed_job.of(bed).of_resumed_run(session, bed, quiet=session.is_json):
        return audited.launch(
            session,
            session.request(
                trial, bed, directory.parent, data_dir=plan.data, resume=str(directory), **observers.callbacks(observer)
            ),
        )


def last_run(session: Session, runs_dir: Path) -> str:
    """Return the run that this shell announced, else the only open one. Raises UsageError where there is none."""
    announced = announcement.last(session.state, announcement.current_shell(os.environ))
    if announced is None:
        return _open_run(session, runs_dir)
    if not announced.has_run:
        raise announced.why_no_run()
    return announced.directory


def _open_run(session: Session, runs_dir: Path) -> str:
    workdirs = sorted(file.parent for file in (session.state / "beds").glob(f"*/{store.OPEN_RUN}"))
    runs = [run for workdir in workdirs if (run := store.open_run(workdir)) and run.begun]
    if len(runs) > 1:
        hint = "; or ".join(f"ccbed resume {short_path(run.directory)}" for run in runs)
        raise UsageError(f"several runs are open: {', '.join(run.run for run in runs)}", hint=hint)
    if not runs:
        last = bundle.latest(runs_dir)
        ended = (
            f"; the last one, {Path(last).name}, has ended" if last else f", and {runs_dir} has none that you started"
        )
        raise UsageError(
            f"no run is open{ended}", hint=f"ccbed check {short_path(runs_dir / last)}" if last else "ccbed list runs"
        )
    night = Path(runs[0].directory).parent.parent
    if not index.is_night(night):
        return runs[0].directory
    from . import nights  # of a module that other runs do not load

    try:
        nights.product().resumed_words(night)
    except UsageError as error:
        raise UsageError(f"run {runs[0].run} is open, of night {night.name}", hint=error.hint) from None
    return str(night)


def _requested_run(directory: Path) -> Path:
    """Return the run, or for a twin the run whose twin it is. Raises UsageError where that no longer exists."""
    origin = paths.document(directory, bundle.BUNDLE).get("twin_of") if (directory / bundle.BUNDLE).exists() else None
    if not origin:
        return directory
    requested = directory.parent / Path(str(origin)).name
    if bundle.stage(requested) == "none":
        raise UsageError(
            f"{short_path(directory)}: the reference run of {origin}, which no longer exists",
            hint=f"judge the reference run itself: ccbed check {short_path(directory)}",
        )
    return requested
