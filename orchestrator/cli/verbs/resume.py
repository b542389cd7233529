"""Resume a run whose orchestrator was interrupted or died."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from ...model.errors import UsageError
from ...model.events import RunEnd
from ...run import judging
from ...store import beds as store
from ...store import bundle, index, paths
from .. import announcement
from ..inputs import beds, options
from ..inputs.session import Session
from ..render import live, summary
from ..render.terminal import short_path
from . import check


@options.command()
@options.of_run(required=False)
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str | None, runs_dir: Path, as_json: bool) -> int:
    """Resume RUN where its history ends; its gang may still be training. A run that has ended is judged again.

    Without RUN, the run of the last `ccbed run` or `ccbed sweep` of this shell; if none began, the error that ended it, exit 3.
    In a shell without one, the only open run. RUN may be the directory of `ccbed run --repeat` or `ccbed sweep`: the runs that
    are missing follow.
    """
    run = run or _last_run(session, runs_dir)
    if night := index.night(run, runs_dir):
        from .. import repeated_run

        if words := repeated_run.resumed_command(night):
            if repeated_run.has_ended(night):
                return repeated_run.show_ended(session, night, as_json=as_json)
            return _repeat(session, [*words[:1], "--json", *words[1:]] if as_json and "--json" not in words else words)
        raise UsageError(f"{short_path(night)}: a night, not a run", hint=f"ccbed nightly --resume {short_path(night)}")
    directory = _requested_run(index.resolve(run, runs_dir))
    history = bundle.read_history(directory)
    end = history.last(RunEnd)
    if end is not None and end.data.outcome == "interrupted":
        raise UsageError(
            f"{short_path(directory)}: the run is closed: {end.data.reason}",
            hint=f"run it again: ccbed run {short_path(directory)}/trial.json",
        )
    trial = bundle.load_trial(directory)
    plan = bundle.load_plan(directory)
    bed = beds.read(session, plan.bed)
    if bundle.stage(directory) == "closed":
        check.verify(directory)
        if bed is not None:
            beds.settle(session, bed)
        result = judging.conclude(session.catalogue, directory, read_only=True)
        return summary.show(session, result, as_json=as_json)
    if bed is None and end is not None:
        return summary.show(session, judging.finish(session.catalogue, directory), as_json=as_json)
    if bed is None:
        raise UsageError(
            f"bed {plan.bed} of this run is no longer up", hint=f"run it again: ccbed run {directory}/trial.json"
        )
    from .. import audited_runs, ephemeral_bed

    printer = live.Printer(terminal=session.terminal, trial=trial, slots=plan.slots, quiet=as_json)
    printer.replay(history.events)
    with ephemeral_bed.of_resumed_run(session, bed, quiet=as_json):
        result = audited_runs.launch(
            session,
            session.request(
                trial, bed, directory.parent, data_dir=plan.data, resume=str(directory), **printer.callbacks
            ),
        )
    return summary.show(session, result, as_json=as_json)


def _last_run(session: Session, runs_dir: Path) -> str:
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
    from .. import repeated_run

    if repeated_run.resumed_command(night):
        return str(night)
    raise UsageError(
        f"run {runs[0].run} is open, of night {night.name}", hint=f"ccbed nightly --resume {short_path(night)}"
    )


def _repeat(session: Session, words: Sequence[str]) -> int:
    """Execute the recorded command line of repeated runs."""
    session.argv = tuple(words)
    code: int = (
        click.get_current_context()
        .find_root()
        .command.main(list(words), prog_name="ccbed", standalone_mode=False, obj=session)
    )
    return code


def _requested_run(directory: Path) -> Path:
    """Return the run, or for a twin the run whose twin it is. Raises UsageError where that no longer exists."""
    origin = paths.document(directory, bundle.BUNDLE).get("twin_of") if (directory / bundle.BUNDLE).exists() else None
    if not origin:
        return directory
    requested = directory.parent / Path(str(origin)).name
    if bundle.stage(requested) == "none":
        raise UsageError(
            f"{short_path(directory)}: the twin of {origin}, which no longer exists",
            hint=f"judge the twin itself: ccbed check {short_path(directory)}",
        )
    return requested
