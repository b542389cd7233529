"""Finds what is not known of a user's job, by rank: the reasons why a verdict about it is unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...model import watch
from ...model.events import FaultInjected
from ...model.run import Run
from ...model.trial import SAVE_PHASES, FaultPlan
from ..findings import Finding, not_ended, not_started
from ..gangs import gangs
from ..step_ranges import Steps
from .attempts import FINISHED, Attempt, Process, failed_load, lacking, reload_of, replica_groups
from .job_checkpoints import saves_of
from .resumption import Lineage

#: A fault that acts after a time needs no checkpoint.
WITHOUT = "--at 5s needs no checkpoint"
#: Steps between two ranks that train together, as they are killed one after the other.
APART = 2
_RANK = re.compile(r"rank (?P<rank>\d+)(?: \([^)]*\))? (?P<rest>.*)", re.DOTALL)


def job_doubts(run: Run, lines: Lineage) -> Iterator[Finding]:
    """The run has not begun or ended; nothing was recorded; ranks have no record in an attempt that others trained in."""
    if run.history.events or lines.is_exact:  # without a bed there is no history
        yield from not_ended(run.history)
        yield from not_started(run.history)
    groups = replica_groups(run.files.watch())
    if groups:
        yield Finding(text=groups)
    elif not lines.attempts:
        yield Finding(text="no training process has a record: the watcher was not loaded, or no optimizer made a step")
    for attempt in lines.attempts:
        yield from missing_ranks(attempt)
        yield from _reloads(attempt)


def _reloads(attempt: Attempt) -> Iterator[Finding]:
    """Ranks that went back to a checkpoint without a new process: their count of steps is not that of the job."""
    loads = {process.name: reload_of(attempt, process) for process in attempt.ranks.values()}
    reasons = [
        f"{name} loaded {load.path or 'a checkpoint'} after {load.n} step{'s' * (load.n != 1)} and trained on with it"
        " in the same process: from which step is not judged"
        for name, load in loads.items()
        if load is not None
    ]
    for reason in fold_ranks(reasons):
        yield Finding(text=f"{attempt.name}: {reason}")


def missing_ranks(attempt: Attempt) -> Iterator[Finding]:
    reasons = [*fold_ranks(attempt.missing.values())]
    if not attempt.ranks:
        reasons = [f"no rank has a record of its training{': ' * bool(reasons)}{'; '.join(reasons)}"]
    for reason in reasons:
        yield Finding(text=f"{attempt.name}: {reason}")


def nothing_to_resume(run: Run, lines: Lineage) -> Iterator[Finding]:
    """Attempts before the last made no step, so the failover shows nothing about checkpoints."""
    if len(lines.attempts) == 1 and len(gangs(run.history)) > 1:
        yield Finding(text="the job had completed no step before the failover, so it had nothing to resume")
    is_only = len(lines.attempts) == 1 and not run.history.events  # a bed knows where the job began
    for process in lines.attempts[0].ranks.values() if is_only else ():
        if (load := _began_with(process)) is not None:
            source = load.path or "a checkpoint"
            text = f"{process.name} began with the optimizer of {source}, and no record shows the start that saved it"
            yield Finding(text=f"{lines.attempts[0].name}: {text}")


def failed_loads(run: Run, lines: Lineage) -> Iterator[Finding]:
    """Starts that made no step because they tried a file whose save had not been completed."""
    for item in lines.resumptions:
        begun = (file for file in run.files.watch() if file.attempt == item.attempt.number and not item.attempt.ranks)
        tried = {file.rank: load for file in begun if (load := failed_load(file)) is not None}
        torn = [(old, write) for old in lines.earlier(item.attempt) for write in saves_of(old) if not write.committed]
        for old, write in torn:
            ranks, base = [rank for rank, load in tried.items() if load.path == write.path], lines.bases.get(old.index)
            if ranks and base is not None:
                cut = "the fault cut" if run.history.first(FaultInjected) else "was cut"
                whole = "no older one was whole" if item.newest is None else f"step {item.newest} was whole"
                lack = lacking(tried[ranks[0]])
                text = f"{_ranks(ranks)} tried step {base + write.n} ({write.path}), whose save {cut}{lack}; {whole}"
                yield Finding(text=f"{item.attempt.name}: {text}")


def _began_with(process: Process) -> watch.Load | None:
    """The load of an optimizer's state before the first step: it resumed. Weights alone may come from another training."""
    start = process.states.get(0)
    loads = (load for load in process.loads if not load.error and start and (load.called or load.t) <= start.t)
    return next((load for load in loads if any(name.startswith("optimizer.") for name in load.contents)), None)


def lost_lines(lines: Lineage) -> Iterator[Finding]:
    """Ranks whose records end long before those of the others: what they saved then is not known.

    A host that loses its power loses what its file system had not written. Ranks that train together are one step apart; others
    lose no save where all ranks save at the same steps, and none of these is later.
    """
    for attempt in lines.attempts:
        last = max((process.last for process in attempt.ranks.values()), default=0)
        saved = {p.rank: {save.n for save in p.file.of(watch.Save)} for p in attempt.ranks.values()}
        for process in attempt.ranks.values():
            others = set[int]().union(*(steps for rank, steps in saved.items() if rank != process.rank))
            is_whole = saved[process.rank] <= others and 0 < max(others, default=0) <= process.last
            if process.end is None and last - process.last > APART and not process.is_claimed and not is_whole:
                text = f"the record of {process.name} ends after step {process.last}, those of others after step {last}"
                yield Finding(text=f"{attempt.name}: {text}: what it saved then is not known")


def fold_ranks(reasons: Iterable[str]) -> Iterator[str]:
    """One sentence for ranks with the same reason: ``rank 0 (n0) has no record`` of four ranks is ``ranks 0-3 have no record``."""
    grouped: dict[str, list[re.Match[str]]] = {}
    for reason in reasons:
        if match := _RANK.fullmatch(reason):
            grouped.setdefault(match["rest"], []).append(match)
        else:
            yield reason
    for rest, matches in grouped.items():
        if len(matches) == 1:
            yield matches[0][0]
        else:
            yield f"ranks {_spans([int(match['rank']) for match in matches])} {re.sub('^has ', 'have ', rest)}"


def _spans(numbers: list[int]) -> str:
    """``0-2, 5`` for 0, 1, 2 and 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def unknown_starts(lines: Lineage) -> Iterator[Finding]:
    """Attempts of which the step that they resumed from is not known."""
    for item in lines.resumptions:
        if item.step is None:
            yield Finding(text=f"{item.attempt.name}: its first step is not known")


def unobserved(attempts: Iterable[Attempt], what: str) -> Iterator[Finding]:
    """A part of the job that the watcher could not observe, by rank; steps that the script reports are known by its word."""
    for attempt in attempts:
        for process in attempt.ranks.values():
            if (reason := process.unobserved(what)) and not (what == "steps" and process.is_claimed):
                yield Finding(text=f"{attempt.name}: {what} of {process.name} not observed: {reason}")


def why_unreached(run: Run, fault: FaultPlan) -> str:
    """Return why a fault that waits for a checkpoint was not reached: what the ranks did, and what to do next;
    empty if that is not known.
    """
    files = tuple(run.files.watch())
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
    steps = max((Steps(file.lines).last for file in files), default=0)
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
        return f"{_ranks(ranks)} loaded {loads[0][1]} and {FINISHED}"
    return f"no optimizer of torch made a step; {WITHOUT}" if files else ""


def _ranks(ranks: Iterable[int]) -> str:
    return next(fold_ranks(f"rank {rank} " for rank in sorted(ranks))).strip()
