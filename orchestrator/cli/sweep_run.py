"""Carry out `ccbed sweep`: run the trial on all nodes of a bed, once or in several rounds, and judge all rounds together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.spec import parse_trial, redact, trial_draft
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import PRECEDENCE, UsageError
from ..model.launch import Result
from ..model.plan import Placement, Plan
from ..model.trial import Trial
from ..nightly import bundle_records, sweeps
from ..nightly.gates.finding import Finding
from ..store import bundle, paths, secrets
from . import run_trial
from .inputs import beds, trials
from .inputs.session import Session
from .render import summary, sweep_view
from .render.terminal import run_path, short_path
from .verbs import up

#: The workloads whose trials each kind of sweep can judge.
PROBING, LINKING = "node-probe", "collective"
#: Rounds that follow where the first ones have a suspect; all rounds are then judged together.
CONFIRMING = 1
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
    results: list[Result] = []
    rounds = options["rounds"]
    while len(results) < rounds:
        result = run_trial.run_once(session, checked, {**options, **_UNUSED}, Path(options["runs_dir"]))
        results.append(result)
        if result.code not in (0, 1, 2):
            return summary.show(session, result, as_json=options["as_json"])
        directories = [Path(result.directory) for result in results]
        sweep = _judge_pairs(directories) if options["each_pair"] else None
        findings = (sweep.finding,) if sweep else _judge_nodes(directories, quarantined)
        has_suspect = any(finding.outcome == "warn" for finding in findings)
        if len(results) == options["rounds"] and has_suspect:
            rounds += CONFIRMING  # what disturbed a link for the time of one probe is not slow in another
    codes = [*(result.code for result in results), sweeps.exit_code(findings)]
    code = next(code for code in PRECEDENCE if code in codes)
    if options["as_json"]:
        session.terminal.json(_document(results, sweep, findings, code))
        return code
    sweep_view.show(session.terminal, [bundle.read_history(directory) for directory in directories], sweep, findings)
    _show_runs(session, results)
    sweep_view.conclude(session.terminal, findings, code)
    session.terminal.line(f"runs      {' '.join(run_path(directory) for directory in directories)}")
    return code


def _trial(session: Session, source: trials.Source, bed: BedSpec, *, is_pairs: bool) -> Trial:
    """The trial on all nodes of the bed. Raises UsageError for one that a sweep of this kind cannot judge."""
    wanted = LINKING if is_pairs else PROBING
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


def _judge_nodes(directories: Sequence[Path], quarantined: Collection[str]) -> tuple[Finding, ...]:
    histories = [bundle.read_history(directory) for directory in directories]
    return sweeps.judge_nodes([bundle_records.read(directory) for directory in directories], histories, quarantined)


def _judge_pairs(directories: Sequence[Path]) -> sweeps.PairSweep:
    """All rounds ran on the same nodes in the same order, because the bed is the same."""
    plan: Plan = paths.built(Plan, directories[-1], bundle.PLAN)
    leaves = {name: plan.nodes[name].leaf for name in plan.slots}
    histories = [bundle.read_history(directory) for directory in directories]
    return sweeps.judge_pairs(histories, plan.slots, leaves, bundle_records.link_hosts(plan))


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
