"""Why a fault that waits for a checkpoint of a script was not reached, by what its ranks did instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...model import watch
from ...model.run import Run
from ...model.trial import SAVE_PHASES, SCRIPT, FaultPlan
from .doubts import fold_ranks

#: A fault that acts after a time needs no checkpoint.
WITHOUT = "--at 5s needs no checkpoint"


def why_unreached(run: Run, fault: FaultPlan) -> str:
    """What the ranks did, and what to do next; empty where their records do not tell."""
    files = tuple(run.files.watch()) if run.trial.workload == SCRIPT else ()
    if fault.at.phase in SAVE_PHASES:
        return _of_phase(run, fault, files)
    return _of_checkpoint(files) if fault.at.after_save else ""


def _of_phase(run: Run, fault: FaultPlan, files: Sequence[watch.WatchFile]) -> str:
    """The held rank saves or loads less often than the trigger needs; others may do so."""
    kind = watch.Load if fault.at.phase == "load" else watch.Save
    counts: Counter[int] = Counter()
    for file in files:
        counts[file.rank] += len({line.id for line in file.of(kind)})  # type: ignore[attr-defined]
    if not isinstance(fault.node, int) or not files:
        return ""
    verb = "loads" if kind is watch.Load else "saves"
    own, nth = fault.node * run.trial.world.ranks_per_node, fault.at.nth or 1
    able = sorted(rank for rank, count in counts.items() if count >= nth)
    done = f"rank {own} of node {fault.node} made {counts[own]} of {nth} {verb}"
    if not able:
        return f"{done}, and no other rank made more"
    nodes = sorted({rank // run.trial.world.ranks_per_node for rank in able})
    return f"{done}; {_ranks(able)} made them: --fail-node {nodes[0]}, or --at after-save={nth}"


def _of_checkpoint(files: Sequence[watch.WatchFile]) -> str:
    steps = max((step.n for file in files for step in file.of(watch.Step)), default=0)
    loads = [(file.rank, line.path) for file in files for line in file.of(watch.Load) if line.path and not line.error]
    unseen = [line.why for file in files for line in file.of(watch.NotObserved) if line.what == "steps"]
    if steps:
        saves = sum(len(file.of(watch.Committed)) for file in files)
        known = "" if saves else "; --checkpoints GLOB names files that something else than torch writes"
        return f"it made {steps} steps{known}; {WITHOUT}"
    if unseen:
        return f"{unseen[0]}; {WITHOUT}"
    if loads:
        ranks = sorted({rank for rank, path in loads if path == loads[0][1]})
        return f"{_ranks(ranks)} loaded {loads[0][1]} and made no step: remove that finished checkpoint, or let it train further"
    return f"no optimizer of torch made a step; {WITHOUT}" if files else ""


def _ranks(ranks: Iterable[int]) -> str:
    return next(fold_ranks(f"rank {rank} " for rank in ranks)).strip()
