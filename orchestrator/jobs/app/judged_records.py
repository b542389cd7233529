"""Judge a training job from the records of ccbed-watch, without a bed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...app.requests import LadderRequest, argument
from ...app.session import Session
from ...core.spec import parse_trial
from ...core.verdict import judge, rungs
from ...model import codec
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...model.event import History
from ...model.frozen import dataclass, replace
from ...model.run import Run
from ...model.trial import CheckSpec, Trial
from ...model.verdict import Verdict
from ...store import paths, recorded_files
from ...views import training

#: The checks that need no history of a bed.
CHECKS = ("resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical")
_CODES = {"pass": EXIT_PASS, "fail": EXIT_FINDING, "unknown": EXIT_UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """The request of `ccbed judge`."""

    directory: Path = argument(exists=True, is_folder=True)
    ladder: LadderRequest = LadderRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts on a job. ``attempts``: name -> ranks, and last step; ``incomplete``: what is missing of the records."""

    directory: Path
    attempts: Mapping[str, tuple[int, int]]
    verdicts: tuple[Verdict, ...]
    incomplete: tuple[str, ...]
    require: str = "whole"

    @property
    def outcome(self) -> str:
        return rungs.worst(rungs.counted(self.verdicts, self.require))

    @property
    def code(self) -> int:
        return _CODES[self.outcome]

    @property
    def document(self) -> object:
        return {"directory": str(self.directory), "outcome": self.outcome, "verdicts": codec.plain(self.verdicts)}


def judge_records(session: Session, request: JudgeRequest) -> Judged:
    """Judge the job whose processes recorded into a directory. Raises UsageError, paths.TornBundleError."""
    directory, require, accept = request.directory, request.ladder.require or "whole", request.ladder.accept
    accepted, unknown = parse_trial.accepted_parts(accept or ("none" if require == "exact" else "rng"))
    if unknown:
        raise UsageError(f"--accept: {parse_trial.not_acceptable(unknown[0])} (got {unknown[0]})")
    records = recorded_files.WatchDirectory(directory)
    trial = Trial(name=directory.name, workload="script", accept=accepted)
    job = Run(directory=str(directory), trial=trial, history=History(()), files=records)
    try:
        known = training.attempts(job)
    except paths.TornBundleError as error:
        hint = "nothing was judged; copy the record again from where it was made, or judge without that file"
        raise paths.TornBundleError(*error.problems, hint=hint) from error
    if not known and not any(job.files.watch()):
        raise UsageError(f"{directory}: no watch-r*.jsonl", hint="record a job: ccbed-watch --dir DIRECTORY -- COMMAND")
    verdicts = judge.judge(job, session.catalogue, [CheckSpec(name=name) for name in CHECKS])
    incomplete = records.incomplete()
    return Judged(
        directory=directory,
        attempts={
            attempt.name: (len(attempt.ranks), max((process.last for process in attempt.ranks.values()), default=0))
            for attempt in known
        },
        verdicts=tuple(_doubted(verdict, incomplete) for verdict in verdicts),
        incomplete=tuple(incomplete),
        require=require,
    )


def _doubted(verdict: Verdict, incomplete: Sequence[str]) -> Verdict:
    """Return the verdict, unknown where records are missing: they may change any verdict."""
    if not incomplete or verdict.outcome == "unknown":
        return verdict
    text = f"{verdict.outcome} without what is missing of the records: {verdict.text}"
    return replace(verdict, outcome="unknown", text=text, evidence={**verdict.evidence, "incomplete": [*incomplete]})
