"""Trials on the terminal: the first lines of a run, and those of a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...app.observers import PlannedRun
from ...core.spec import parse_faults, parse_trial, slots
from ...model.bed import BedSpec
from ...model.plan import Placement, Plan
from ...model.trial import SAVE_PHASES, SCRIPT, STEPS_LATER, Trial

if TYPE_CHECKING:
    from ...app.run import DryRun


def head(run: PlannedRun) -> Iterator[str]:
    """Yield what is said before a run begins: its trial and faults, notes, nodes and job."""
    yield from describe(run.trial, run.last_step)
    yield from (f"note   {text}" for text in run.notes)
    yield from on_bed(run.trial, run.bed, run.placement)
    yield from run.job


def on_bed(trial: Trial, bed: BedSpec, placement: Placement) -> Iterator[str]:
    """Yield the nodes of the slots, the spares, and each node that the run must not use."""
    assigned = slots.assign(trial, bed, placement)
    spares = [node.name for node in assigned.spares]
    spare = f" + spare {' '.join(spares)}" if spares else ""
    policy = ", ".join(trial.recovery.policy)
    names = " ".join(node.name for node in assigned.slots)
    yield f"bed    {bed.name}: {names}{spare} · recovery {policy} (change with --recovery)"
    if trial.world.can_shrink and trial.workload == SCRIPT:
        yield "note   fewer nodes share data and sums in another way: after a loss, batches, random states and bits are not compared"
    yield from (f"note   {text}" for text in slots.describe_excluded(bed, placement, assigned.substitutes))
    yield from (f"spare  {text}" for text in placement.notes)


def dry_run(planned_run: DryRun) -> Iterator[str]:
    """Yield what a run would do and where."""
    trial = planned_run.trial
    yield from describe(trial, planned_run.plan.last_step)
    yield from (f"note   {text}" for text in planned_run.notes)
    yield from on_bed(trial, planned_run.bed, planned_run.placement)
    yield from planned(trial, planned_run.plan)


def describe(trial: Trial, last_step: int | None) -> Iterable[str]:
    """Yield the first lines of a run: the trial and its faults."""
    params = trial.params
    picked = [str(params[name]) for name in ("model",) if params.get(name)]
    if isinstance(params.get("algorithm"), str):
        is_own = params["algorithm"] != parse_trial.LIBRARY
        picked.append(f"our {params['algorithm']}" if is_own else "the library's all-reduce")
    if params.get("operation"):
        picked.append(f"{params['operation']} by {', '.join(params['algorithm'])}")
    if params.get("items"):
        picked.append(f"{len(params['items'])} collectives replayed")
    if trial.workload == SCRIPT:
        module = f"-m {params['module']}" if params.get("module") else ""
        picked.append(" ".join([str(params.get("file") or module), *params.get("args", ())]).strip())
    world = f"{trial.world.nodes} x {trial.workers_per_node} ranks"
    most = "at most " if params.get("precision") else ""
    steps = [f"{most}{last_step} steps"] if last_step else []
    steps += [f"batch {params['batch']}"] if "batch" in params else []
    steps += [f"checkpoint every {params['checkpoint_every']}"] if params.get("checkpoint_every") else []
    steps += [f"stops at {params['stop_at']}"] if params.get("stop_at") else []
    seed = "" if trial.workload == SCRIPT else f"seed {trial.seed}"
    text = " · ".join(part for part in (*picked, world, ", ".join(steps), seed) if part)
    yield f"trial  {trial.name}: {text}"
    for fault in trial.faults:
        where = f"node {fault.node}" if isinstance(fault.node, int) else fault.node
        yield f"fault  {fault.fault} {where} {_when(fault.at)}"


def planned(trial: Trial, plan: Plan) -> Iterable[str]:
    """Yield the lines of a dry run: what the plan decides beyond the trial."""
    threads = f"{plan.threads} thread{'s' * (plan.threads != 1)} each"
    yield f"ranks  {plan.backend}, {threads} · recovery {', '.join(plan.policy)}"
    if plan.data:
        yield f"data   {plan.data}"
    for fault in trial.faults:
        node = plan.slots[fault.node] if isinstance(fault.node, int) else fault.node
        act = plan.acts[fault.id][node]
        steps = ", ".join(" ".join([step.kind, *map(str, step.args.values())]) for step in act.inject)
        yield f"act    {fault.id} on {node}: {steps} · undone after {act.lease_s:g} s at the latest"
    yield "nothing was started     all values of trial and plan: --json"


def _later(at: Any) -> str:
    if at.steps_later is None:
        return f"up to {STEPS_LATER} steps after "
    return f"{at.steps_later} steps after " if at.steps_later else "after "


def _when(at: Any) -> str:
    if at.after_s is not None:
        return f"{at.after_s:g} s after the worker group joined, once, observed"
    if at.on is not None and at.after_save is not None:
        return f"{_later(at)}checkpoint {at.after_save} of the script, once, observed"
    if at.on is not None:
        return f"on {at.on}, once, observed"
    if at.after_save is not None:
        return f"{_later(at)}checkpoint {at.after_save} of the script, phase {at.phase}, once, exact"
    if at.phase in SAVE_PHASES:
        return f"at {at.phase} {at.nth} of its rank, once, exact"
    point = f"phase {at.phase}" if at.phase in parse_faults.LIFE_PHASES else f"step {at.step}, phase {at.phase}"
    return f"at {point}, once, exact"
