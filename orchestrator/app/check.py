"""Judge a run again from its bundle, or a training job from the records of ccbed-watch; needs no bed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..core.spec import parse_trial
from ..core.verdict import judge, rungs, sentence
from ..model import codec
from ..model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, InfrastructureError, UsageError
from ..model.event import History
from ..model.events import RunEnd
from ..model.frozen import dataclass, replace
from ..model.launch import Result
from ..model.run import Run
from ..model.trial import CheckSpec, Trial
from ..model.verdict import Verdict
from ..run import judging
from ..store import bundle, files, index, paths, seal, signing
from ..views import training
from .places import short_path
from .requests import LadderRequest, argument, named_run, option, runs_directory
from .session import Session

BED_KEY = (
    "A key of the run's bed, beds/BED/keeper/events.key in ccbed's state directory (until `ccbed down`; `ccbed bundle verify RUN`"
    " names it): verify that its host agent signed its events and the list of all evidence."
)


def bed_keys() -> Any:
    """The field for the keys of a bed."""
    return option((), BED_KEY, metavar="FILE", flags=("--bed-key",))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The request of `ccbed check`."""

    run: str = named_run("latest")
    runs_dir: Path = runs_directory()
    accept_changed: bool = option(
        False, "Use a check of --plugins even if its file has changed since the run was planned."
    )
    keys: tuple[Path, ...] = bed_keys()


def run(session: Session, request: CheckRequest) -> Result:
    """Verify the seal and the signatures of a run, and judge it. Raises UsageError, TornBundleError, InfrastructureError."""
    directory = index.resolve(request.run, request.runs_dir)
    verify(directory)
    if request.keys and (problems := signing.unsigned(directory, request.keys)):
        raise paths.TornBundleError(
            *problems, hint=f"without --bed-key it is judged: ccbed check {short_path(directory)}"
        )
    return judging.conclude(
        session.catalogue, directory, accept_changed=request.accept_changed, is_signed=bool(request.keys), read_only=True,
        redraw=False, on_stage=session.terminal.status,
    )  # fmt: skip


def verify(directory: Path) -> None:
    """Raises TornBundleError when the evidence does not match its seal, InfrastructureError when it has none."""
    if not bundle.is_sealed(directory):
        _unsealed(directory)
    problems = seal.verify_evidence(directory)
    if problems:
        hint = "changed evidence proves nothing: copy the bundle again from where it was made"
        raise paths.TornBundleError(*problems, hint=hint)


def _unsealed(directory: Path) -> NoReturn:
    """Raises InfrastructureError for a run that has not ended, TornBundleError for one whose seal is missing."""
    where = short_path(directory)
    if bundle.read_history(directory).last(RunEnd):
        hint = f"if it was interrupted while it was closed: ccbed resume {where}; else copy the bundle again from where it was made"
        raise paths.TornBundleError(f"{where}: not closed: it has no {seal.MANIFEST}", hint=hint)
    hint = f"wait for it: ccbed watch {where}; or, if its orchestrator is gone: ccbed resume {where}"
    raise InfrastructureError(f"{where}: the run has not ended", hint=hint)


# --- a job that ran under ccbed-watch ---

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
        return sentence.worst(rungs.counted(self.verdicts, self.require))

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
    records = files.WatchDirectory(directory)
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
    """What is missing of the records may change any verdict, so none of them is known."""
    if not incomplete or verdict.outcome == "unknown":
        return verdict
    text = f"{verdict.outcome} without what is missing of the records: {verdict.text}"
    return replace(verdict, outcome="unknown", text=text, evidence={**verdict.evidence, "incomplete": [*incomplete]})
