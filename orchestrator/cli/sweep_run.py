"""Carry out `ccbed sweep`: run the trial on all nodes of a bed, once or in several rounds, and judge all rounds together."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.spec import parse_trial, redact, trial_draft
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import PRECEDENCE, UsageError
from ..model.frozen import dataclass, replace
from ..model.launch import Result
from ..model.plan import Placement, Plan
from ..model.trial import Trial
from ..nightly import bundle_records, night_files, sweeps
from ..nightly.gates.finding import Finding
from ..nightly.suite import RUNS, Cell
from ..store import bundle, paths, secrets
from . import repeated_run, run_trial
from .inputs import beds, trials
from .inputs.session import Session
from .render import summary, sweep_view
from .render.terminal import run_path, short_path
from .verbs import up

#: The round that follows where the first ones have a suspect; all rounds are then judged together.
CONFIRMING = "confirming round"
#: The links of a sweep of pairs, and what is odd.
Judged = tuple[sweeps.PairSweep | None, tuple[Finding, ...]]
#: Options of `run` that a sweep does not have.
_UNUSED: Mapping[str, Any] = {"tee": None, "log_dir": None, "twin": False, "fail_node": ()}


def run(session: Session, options: Mapping[str, Any]) -> int:
    """Return the exit code: the worst of the runs' codes and of the sweep's own."""
    bed = beds.wanted(session, options["inventory"]) if options["inventory"] else beds.choose(session, options["bed"])
    source = trials.open_source(options["trial"], (), session.catalogue)
    drained = beds.drained_nodes(bed)
    usable = replace(bed, nodes=tuple(node for node in bed.nodes if node.name not in drained))
    trial = _trial(session, source, usable, is_pairs=options["each_pair"])
    if bed.agent != session.agent():
        raise UsageError(
            f"bed {bed.name} runs the agent of another version of ccbed", hint=f"ccbed up {short_path(bed.inventory)}"
        )
    if bed.slurm and options["inventory"]:  # which nodes the bed has is known when its job runs
        up.up(session, bed, quiet=options["as_json"])
    quarantined = beds.placement(session, bed, include_quarantined=False).quarantined
    redaction = redact.Redaction(mask=secrets.mask(session.state), names=source.secret_names)
    checked = run_trial.CheckedTrial(
        source=source, trial=trial, redaction=redaction, bed=bed, data_dir=bed.data_dir,
        placement=Placement(drained=drained),
    )  # fmt: skip
    runs_dir, count = Path(options["runs_dir"]), options["rounds"]
    if options["resume"]:
        directory = Path(options["resume"]).resolve()
        night = repeated_run.resumed(directory, bed, trial, count)
    else:
        cells = (
            Cell(name=trial.name, trial=trial.name, repeats=count),
            Cell(name=CONFIRMING, trial=trial.name, repeats=1),
        )
        directory, night = repeated_run.begin(
            session, bed, "sweep", cells, runs_dir, shlex.join(["ccbed", *session.argv])
        )
    once = functools.partial(run_trial.run_once, session, checked, {**options, **_UNUSED})
    judge = _judge_pairs if options["each_pair"] else functools.partial(_judge_nodes, quarantined=quarantined)
    rounds = Rounds(session=session, directory=directory, once=once, quiet=True, judge=judge)
    rounds.carry_out(night)
    return rounds.finish(as_json=options["as_json"])


@dataclass(kw_only=True)
class Rounds(repeated_run.Repeats):
    """``judge``: of the directories of all rounds."""

    judge: Callable[[Sequence[Path]], Judged]

    def obstacle(self, cell: Cell) -> str:
        """What disturbed a link for the time of one probe is not slow in another round: a suspect is probed once more."""
        if cell.name != CONFIRMING:
            return ""
        is_known = bool(self.results) and not self.error and not self._broken
        return (
            ""
            if is_known and any(finding.outcome == "warn" for finding in self.judge(self._directories)[1])
            else "no suspect"
        )

    def finish(self, *, as_json: bool) -> int:
        """Show what all rounds together say. Returns the exit code. Raises the error that ended them early."""
        if self.error:
            if night_files.is_closed(self.directory):
                document = {"findings": [], "error": list(self.error.problems), "exit": self.error.exit_code}
                repeated_run.write_document(self.directory, "sweep", document)
            raise self.error
        if self._broken:
            repeated_run.write_document(self.directory, "sweep", summary.document(self._broken[0]))
            return summary.show(self.session, self._broken[0], as_json=as_json)
        ended = [row.run for row in night_files.read_rows(self.directory) if row.run]
        if lost := set(ended) - {result.run for result in self.results}:
            raise paths.TornBundleError(
                *(f"{self.directory / RUNS / run}: this round cannot be read" for run in sorted(lost))
            )
        sweep, findings = self.judge(self._directories)
        codes = [*(result.code for result in self.results), sweeps.exit_code(findings)]
        code = next(code for code in PRECEDENCE if code in codes)
        document = _document(self.results, sweep, findings, code)
        repeated_run.write_document(self.directory, "sweep", document)
        terminal = self.session.terminal
        if as_json:
            terminal.json(document)
            return code
        histories = [bundle.read_history(directory) for directory in self._directories]
        sweep_view.show(terminal, histories, sweep, findings)
        _show_runs(self.session, self.results)
        sweep_view.conclude(terminal, findings, code)
        terminal.line(f"runs      {' '.join(run_path(directory) for directory in self._directories)}")
        return code

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
    return trials.without_missing_libraries(session.terminal, trial, bed)


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


def _show_runs(session: Session, results: Sequence[Result]) -> None:
    """The verdicts of runs that do not pass: their figures may mean less."""
    for result in results:
        bad = [verdict for verdict in result.verdicts if verdict.outcome in ("fail", "unknown")]
        session.terminal.lines(
            f"run       {result.run}: {verdict.outcome} {verdict.check}: {verdict.text}" for verdict in bad
        )


def _document(
    results: Sequence[Result], sweep: sweeps.PairSweep | None, findings: Sequence[Finding], code: int
) -> dict[str, Any]:
    return {
        "sweep": "pairs" if sweep else "nodes",
        "runs": [result.directory for result in results],
        "findings": codec.plain(list(findings)),
        **(sweeps.document(sweep) if sweep else {}),
        "exit": code,
    }
