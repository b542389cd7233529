"""Run a trial on all nodes of a bed, once or in several rounds, and judge all rounds together."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ...app import bed_job, beds, trials
from ...app import run as run_one
from ...app.places import short_path
from ...app.requests import OutputRequest, RunRequest, TrialRef
from ...app.session import Session
from ...app.up import up
from ...core.spec import parse_trial, redact, trial_draft
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import PRECEDENCE, UsageError
from ...model.event import History
from ...model.frozen import dataclass, replace
from ...model.launch import Result
from ...model.plan import Placement, Plan
from ...model.trial import Trial
from ...store import bundle, paths, secrets
from .. import bundle_records, night_files, sweeps
from ..records import Finding
from ..suite import RUNS, Cell, Night
from . import repeats
from .night_requests import SweepRequest

#: The round that follows where the first ones have a suspect; all rounds are then judged together.
CONFIRMING = "confirming round"
#: The links of a sweep of pairs, and what is odd.
Judged = tuple[sweeps.PairSweep | None, tuple[Finding, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The judgement of all rounds. ``broken``: a run without one, such as after a failure of the bed; who shows it records it."""

    directory: Path
    results: tuple[Result, ...]
    code: int
    sweep: sweeps.PairSweep | None = None
    findings: tuple[Finding, ...] = ()
    broken: Result | None = None

    @property
    def directories(self) -> list[Path]:
        return [Path(result.directory) for result in self.results]

    def histories(self) -> list[History]:
        """Read the histories of all rounds."""
        return [bundle.read_history(directory) for directory in self.directories]

    @property
    def document(self) -> object:
        """All of it, for programs."""
        return {
            "sweep": "pairs" if self.sweep else "nodes",
            "runs": [result.directory for result in self.results],
            "findings": codec.plain(list(self.findings)),
            **(sweeps.document(self.sweep) if self.sweep else {}),
            "exit": self.code,
        }


def run(session: Session, request: SweepRequest) -> Swept:
    """Run the rounds of a sweep, or those that are missing of ``request.resume``, and judge them together.

    Raises UsageError, InfrastructureError, Interrupted: the error that ended the rounds early.
    """
    if request.each_node == request.each_pair:
        raise UsageError(
            "sweep takes either --each-node or --each-pair",
            hint="ccbed sweep gemm --each-node, or ccbed sweep links --each-pair",
        )
    with bed_job.of_inventory(session, request.bed.inventory, quiet=session.is_json):
        return _run(session, request, beds.meant(session, request.bed))


def _run(session: Session, request: SweepRequest, bed: BedSpec) -> Swept:
    source = trials.open_source(request.trial, (), session.catalogue)
    drained = beds.drained_nodes(bed)
    usable = replace(bed, nodes=tuple(node for node in bed.nodes if node.name not in drained))
    trial = _trial(session, source, usable, is_pairs=request.each_pair)
    if bed.agent != session.agent():
        raise UsageError(
            f"bed {bed.name} runs the agent of another version of ccbed", hint=f"ccbed up {short_path(bed.inventory)}"
        )
    if bed.slurm and request.bed.inventory:  # which nodes the bed has is known when its job runs
        up(session, bed, quiet=session.is_json)
    quarantined = beds.placement(session, bed, include_quarantined=False).quarantined
    redaction = redact.Redaction(mask=secrets.mask(session.state), names=source.secret_names)
    checked = run_one.CheckedTrial(
        source=source, trial=trial, redaction=redaction, bed=bed, data_dir=bed.data_dir,
        placement=Placement(drained=drained),
    )  # fmt: skip
    directory, night = _begun(session, request, bed, trial)
    round_request = RunRequest(
        trial=TrialRef(name=request.trial),
        reference=False,
        bed=request.bed,
        output=OutputRequest(runs_dir=request.runs_dir),
    )
    once = functools.partial(run_one.run_once, session, round_request, checked)
    judge = _judge_pairs if request.each_pair else functools.partial(_judge_nodes, quarantined=quarantined)
    rounds = Rounds(session=session, directory=directory, once=once, on_result=lambda _: None, judge=judge)
    rounds.carry_out(night)
    return rounds.finish()


def _begun(session: Session, request: SweepRequest, bed: BedSpec, trial: Trial) -> tuple[Path, Night]:
    if request.resume:
        directory = request.resume.resolve()
        return directory, repeats.resumed(directory, bed, trial, request.rounds)
    cells = (
        Cell(name=trial.name, trial=trial.name, repeats=request.rounds or 1),
        Cell(name=CONFIRMING, trial=trial.name, repeats=1),
    )
    return repeats.begin(session, bed, "sweep", cells, request.runs_dir, shlex.join(["ccbed", *session.argv]))


@dataclass(kw_only=True)
class Rounds(repeats.Repeats):
    """``judge``: of the directories of all rounds."""

    judge: Callable[[Sequence[Path]], Judged]

    def obstacle(self, cell: Cell) -> str:
        """Return why a round that confirms is left out. What disturbed a link during one probe is not slow in another round."""
        if cell.name != CONFIRMING:
            return ""
        is_known = bool(self.results) and not self.error and not self._broken
        return (
            ""
            if is_known and any(finding.outcome == "warn" for finding in self.judge(self._directories)[1])
            else "no suspect"
        )

    def finish(self) -> Swept:
        """Return what all rounds together say. Raises the error that ended them early."""
        if self.error:
            if night_files.is_closed(self.directory):
                document = {"findings": [], "error": list(self.error.problems), "exit": self.error.exit_code}
                repeats.write_document(self.directory, "sweep", document)
            raise self.error
        results = tuple(self.results)
        if self._broken:
            return Swept(directory=self.directory, results=results, code=self._broken[0].code, broken=self._broken[0])
        ended = [row.run for row in night_files.read_rows(self.directory) if row.run]
        if lost := set(ended) - {result.run for result in self.results}:
            raise paths.TornBundleError(
                *(f"{self.directory / RUNS / run}: this round cannot be read" for run in sorted(lost))
            )
        sweep, findings = self.judge(self._directories)
        codes = [*(result.code for result in self.results), sweeps.exit_code(findings)]
        code = next(code for code in PRECEDENCE if code in codes)
        swept = Swept(directory=self.directory, results=results, code=code, sweep=sweep, findings=tuple(findings))
        repeats.write_document(self.directory, "sweep", swept.document)
        return swept

    @property
    def _directories(self) -> list[Path]:
        return [Path(result.directory) for result in self.results]

    @property
    def _broken(self) -> list[Result]:
        """The runs without a judgement, such as after a failure of the bed."""
        return [result for result in self.results if result.code not in (0, 1, 2)]


def _trial(session: Session, source: trials.Source, bed: BedSpec, *, is_pairs: bool) -> Trial:
    """The trial on all nodes of the bed. Raises UsageError for one that a sweep of this kind cannot judge."""
    wanted = sweeps.LINKING if is_pairs else sweeps.PROBING
    if source.workload != wanted:
        flag, example = ("--each-pair", "links") if is_pairs else ("--each-node", "gemm")
        raise UsageError(
            f"{source.label}: sweep {flag} needs a trial of workload {wanted} (got {source.workload})",
            hint=f"ccbed sweep {example} {flag}",
        )
    count = sum(node.role == "node" for node in bed.nodes)
    changes: dict[tuple[str, ...], Any] = {("world", "nodes"): count}
    if is_pairs:
        changes |= {("world", "ranks_per_node"): 1, ("params", "probe"): True, ("params", "fresh_probe"): True}
    overrides = [trial_draft.Override(path=path, content=value, source="sweep") for path, value in changes.items()]
    trial = parse_trial.build(source.document, session.catalogue, overrides, bed.data_dir)
    if trial.faults:
        raise UsageError(
            f"{source.label}: a sweep measures the bed as it is; the trial has faults", hint="remove its faults"
        )
    return trials.without_missing_libraries(session.terminal, trial, bed, session.catalogue)


def _judge_nodes(directories: Sequence[Path], quarantined: Collection[str]) -> Judged:
    """``quarantined``: the nodes that are no peers of the others."""
    histories = [bundle.read_history(directory) for directory in directories]
    return None, sweeps.judge_nodes(
        [bundle_records.read(directory) for directory in directories], histories, quarantined
    )


def _judge_pairs(directories: Sequence[Path]) -> Judged:
    """All rounds ran on the same nodes in the same order, because the bed is the same."""
    plan: Plan = paths.built(Plan, directories[-1], bundle.PLAN)
    leaves = {name: plan.nodes[name].leaf for name in plan.slots}
    histories = [bundle.read_history(directory) for directory in directories]
    sweep = sweeps.judge_pairs(histories, plan.slots, leaves, bundle_records.link_hosts(plan))
    return sweep, (sweep.finding,)
