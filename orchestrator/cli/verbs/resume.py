"""Resume a run whose orchestrator was interrupted or died."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...model.errors import UsageError
from ...model.events import RunEnd
from ...run import judging
from ...store import bundle, index, paths
from ..inputs import beds, options
from ..inputs.session import Session
from ..render import live, summary
from ..render.terminal import short_path
from . import check


@options.command()
@options.of_run(default="latest")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Resume RUN where its history ends; its gang may still be training. A run that has ended is judged again.

    RUN may be the directory of `ccbed run --repeat`: the runs that are missing follow.
    """
    if night := index.night(run, runs_dir):
        from .. import repeated_run

        if words := repeated_run.resumed_command(night):
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
