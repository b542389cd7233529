"""Judge a training job from the records of ccbed-watch, without a bed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from ...app.requests import LadderRequest
from ...core.spec import parse_trial, values
from ...core.verdict import judge, rungs, sentence
from ...model import codec
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...model.event import History
from ...model.run import Run
from ...model.trial import ACCEPTABLE, CheckSpec, Trial
from ...model.verdict import Verdict
from ...store import files
from ...store.paths import TornBundleError
from ...views import training
from ..inputs import options
from ..inputs.session import Session
from ..render import summary

#: The checks that need no history of a bed.
CHECKS = ("resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical")
_CODES = {"pass": EXIT_PASS, "fail": EXIT_FINDING, "unknown": EXIT_UNKNOWN}


@options.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.of_request(LadderRequest)
@options.as_json
@click.pass_obj
def command(session: Session, directory: Path, as_json: bool, require: str | None, accept: str | None) -> int:
    """Judge the job whose processes recorded into DIRECTORY: from which step it resumed, with what, and what was lost.

    \b
    ccbed-watch --dir records -- torchrun --nproc-per-node 2 --max-restarts 3 train.py
    ccbed judge records
    """
    accepted, unknown = parse_trial.accepted_parts(accept or ("none" if require == "exact" else "rng"))
    if unknown:
        raise UsageError(f"--accept: unknown part; {values.nearest(unknown[0], ACCEPTABLE)} (got {unknown[0]})")
    records = files.WatchDirectory(directory)
    run = Run(
        directory=str(directory),
        trial=Trial(name=directory.name, workload="script", accept=accepted),
        history=History(()),
        files=records,
    )
    try:
        known = training.attempts(run)
    except TornBundleError as error:
        hint = "nothing was judged; copy the record again from where it was made, or judge without that file"
        raise TornBundleError(*error.problems, hint=hint) from error
    if not known and not any(run.files.watch()):
        raise UsageError(f"{directory}: no watch-r*.jsonl", hint="record a job: ccbed-watch --dir DIRECTORY -- COMMAND")
    verdicts = judge.judge(run, session.catalogue, [CheckSpec(name=name) for name in CHECKS])
    incomplete = records.incomplete()
    verdicts = tuple(_doubted(verdict, incomplete) for verdict in verdicts)
    outcome = sentence.worst(rungs.counted(verdicts, require or "whole"))
    if as_json:
        session.terminal.json({"directory": str(directory), "outcome": outcome, "verdicts": codec.plain(verdicts)})
        return _CODES[outcome]
    for attempt in known:
        last = max((process.last for process in attempt.ranks.values()), default=0)
        ranks = sentence.count(len(attempt.ranks), "rank")
        session.terminal.line(f"{attempt.name}: {ranks}, {sentence.count(last, 'step')}")
    for problem in incomplete:
        session.terminal.warn(problem)
    session.terminal.lines(summary.verdicts(session.terminal, verdicts))
    return _CODES[outcome]


def _doubted(verdict: Verdict, incomplete: Sequence[str]) -> Verdict:
    """What is missing of the records may change any verdict, so none of them is known."""
    if not incomplete or verdict.outcome == "unknown":
        return verdict
    text = f"{verdict.outcome} without what is missing of the records: {verdict.text}"
    return replace(verdict, outcome="unknown", text=text, evidence={**verdict.evidence, "incomplete": [*incomplete]})
