"""Go on with a run whose orchestrator was interrupted or died."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..model.errors import UsageError
from ..model.launch import Request
from ..store import bundle, index
from . import beds, options, summary, telling
from .session import Session


@options.command()
@click.argument("run", default="latest")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Go on with RUN where its history ends; its gang may still be training."""
    directory = index.resolve(run, runs_dir)
    if bundle.is_sealed(directory) and bundle.read_verdicts(directory):
        where = beds.shown(directory)
        raise UsageError(
            f"{where}: the run has ended", hint=f"ccbed check {where}; again: ccbed run {where}/trial.json"
        )
    history = bundle.read_history(directory)
    end = history.last("run.end")
    if end is not None and end.value.get("outcome") == "interrupted":
        raise UsageError(
            f"{beds.shown(directory)}: the run was given up: {end.value.get('reason')}",
            hint=f"again: ccbed run {beds.shown(directory)}/trial.json",
        )
    trial = bundle.load_trial(directory)
    plan = bundle.load_plan(directory)
    bed = beds.read(session, plan.bed)
    if bed is None:
        raise UsageError(
            f"bed {plan.bed} of this run is not up any more", hint=f"again: ccbed run {directory}/trial.json"
        )
    teller = telling.Teller(terminal=session.terminal, trial=trial, slots=plan.slots, quiet=as_json)
    teller.recall(history.events)
    result = session.launch(
        Request(
            trial=trial,
            bed=bed,
            provider=session.provider(bed),
            catalogue=session.catalogue,
            runs=str(directory.parent),
            state=str(session.state),
            command=shlex.join(["ccbed", *session.argv]),
            data_dir=plan.data,
            resume=str(directory),
            began=teller.begun,
            told=teller.tell,
        )
    )
    return summary.show(session, result, as_json=as_json)
