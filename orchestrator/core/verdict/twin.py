"""Twins: the undisturbed run of the same trial, with which a run is compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from ... import views
from ...model import codec
from ...model.event import History
from ...model.events import (
    FaultInjected,
    FaultPlanned,
    NodeSilent,
    RankFinished,
    RecoveryDecided,
    RecoveryGrown,
    RecoveryRefused,
    RecoveryReplaced,
    RunBegin,
    RunInterrupted,
    RunStopped,
)
from ...model.run import Control, Run, Twin
from ...model.trial import Trial
from ...views import training

#: Faults that end ranks, so that a restart in their place shows what restarting changes.
ENDING = ("crash-node", "crash-rank", "oom", "power-off", "preempt")
#: Parts of a trial that do not change the computed result.
LEFT_OUT = ("name", "faults", "recovery", "checks", "liveness", "require", "accept")


def twin_key(trial: Trial, fingerprint: Mapping[str, Any]) -> str:
    """The key that two runs must share to be compared bit by bit: computing parts of the trial, and the fingerprint."""
    content = {name: value for name, value in codec.plain(trial).items() if name not in LEFT_OUT}
    return codec.digest({"trial": content, "fingerprint": fingerprint})[:16]


def is_script(trial: Trial) -> bool:
    """Return whether the twin is known by the watcher's records. It is never cached: ccbed does not know everything that a script reads."""
    return trial.workload == "script"


def make_twin(run: Run) -> Twin | None:
    """The twin from a finished run; None if the run was disturbed or did not record enough."""
    lines = training.lineage_of(run)
    outcome, _, _ = views.ending(run.history)
    if outcome != "finished" or len(lines.attempts) != 1 or _disturbed(run):
        return None
    facts = training.kept_facts(lines)
    digests, ranks = facts.digests, lines.attempts[0].ranks
    if lines.is_exact:
        digests = cast(dict[str, dict[str, str]], training.final_digests(lines))
        if set(digests) != {*map(str, ranks)} or not all(digests.values()) or not all(p.steps for p in ranks.values()):
            return None
    if not facts.steps or not digests:
        return None
    return Twin(
        key=twin_key(run.trial, views.mapping(run.extras.get("fingerprint.json"))), run=_name(run), losses=facts.losses,
        digests=digests, steps=facts.steps, faults=0, restarts=0, final_loss=_final_loss(run), saves=facts.saves,
        batch_losses={str(step): loss for step, loss in views.batch_losses(run.files.steps()).items()},
        every=training.checkpoint_cost.state_interval(lines), generators=facts.generators,
        lists=facts.lists,
    )  # fmt: skip


def unfit(run: Run) -> str:
    """Return why a run cannot serve as a twin, where ``make_twin`` gives none."""
    outcome, reason, _ = views.ending(run.history)
    if outcome != "finished":
        gangs = views.gangs(run.history)
        cause = views.root_cause(run.history, gangs[-1]) if gangs else None
        why = f"rank {cause.rank} {cause.how}" if cause else reason
        is_isolated = views.mapping(run.extras.get("plan.json")).get("isolation") is not None
        hint = "; it may write only in its copy (--root): give other paths as {out}, or --map" * is_isolated
        return f"{_name(run)} {outcome}: {why}{hint}"
    if _disturbed(run):
        return "it was disturbed"
    return "it recorded no digest of its weights, or not its whole state"


def restarting(history: History) -> frozenset[str]:
    """The faults that made the job restart: of those that were injected before a recovery was decided, the last one each."""
    injected, result = "", set()
    for event in history.of(FaultInjected, RecoveryDecided):
        if isinstance(event.data, FaultInjected):
            injected = event.data.id
        elif injected:
            result.add(injected)
    return frozenset(result)


def control_trial(trial: Trial, restarted: Collection[str] = ()) -> Trial | None:
    """The trial of the restart control: a rank ends where the faults of ``trial`` act, a preemption after its notice.

    ``restarted``: faults that end no rank by themselves, such as a hang, and made the job restart in this run. The others that end
    no rank are left out. None where nothing restarts.
    """
    params = {"local_rank": 0, "signal": "KILL"}
    faults = tuple(
        fault if fault.fault == "preempt" else replace(fault, fault="crash-rank", params=params)
        for fault in trial.faults
        if fault.fault in ENDING or fault.id in restarted
    )
    if not faults:
        return None
    return replace(trial, faults=faults, checks=(), recovery=replace(trial.recovery, policy=("restart",)))


def make_control(run: Run) -> Control | None:
    """The control from a run that has ended; None if it did not finish, or the step that it resumed from is not known."""
    outcome, _, _ = views.ending(run.history)
    ranks = training.uneven_ranks(run)
    parts = [training.of_rank(run, rank) for rank in ranks] or [run]
    lineages = [*map(training.lineage_of, parts)]
    known = [*map(training.kept_facts, lineages)]
    bases = [part.base for part in known if part.base is not None]
    if outcome != "finished" or len(bases) < len(known) or not known[0].digests:
        return None
    saves: dict[str, dict[str, str]] = {}
    for step, keys in (item for part in known for item in part.saves.items()):
        saves.setdefault(step, {}).update(keys)
    return Control(
        run=_name(run), base=bases[0], steps=max(part.steps for part in known), saves=saves,
        losses={rank: own for part in known for rank, own in part.losses.items()},
        digests={rank: own for part in known for rank, own in part.digests.items()},
        bases={str(rank): base for rank, base in zip(ranks, bases, strict=False)},
        parts=training.saved_state.restored_parts(lineages[0]), restarts=known[0].restarts if len(known) == 1 else (),
    )  # fmt: skip


def incomplete(twin: Twin, ranks: int) -> str:
    """Return what a twin of ``ranks`` ranks lacks for a comparison; empty if it is complete."""
    for name, by_rank in (("losses", twin.losses), ("digests", twin.digests)):
        missing = [str(rank) for rank in range(ranks) if not by_rank.get(str(rank))]
        if missing:
            return f"it has no {name} of rank {', '.join(missing)}"
    return ""


def _disturbed(run: Run) -> bool:
    """Return whether a fault was planned, or a node was lost, recovered or paused, or the run was interrupted."""
    disturbances = (
        FaultPlanned,
        FaultInjected,
        RecoveryDecided,
        RecoveryGrown,
        RecoveryRefused,
        RecoveryReplaced,
        RunInterrupted,
        NodeSilent,
    )
    stopped = run.history.last(RunStopped)
    events = run.history.events if stopped is None else run.history.events[: stopped.seq]
    losses = any(views.is_abnormal(event) for event in events if event.type == "note")
    return bool(run.trial.faults) or bool(run.history.of(*disturbances)) or losses


def _name(run: Run) -> str:
    begin = run.history.first(RunBegin)
    return (begin.data.run or "") if begin else ""


def _final_loss(run: Run) -> float:
    """The mean loss over ranks, as the terminal shows it; the loss of the first rank if no mean was reported, 0 without one."""
    ends = views.gangs(run.history)[0].by_rank(RankFinished)
    finished = ends[min(ends)].data if ends else None
    return (views.number(finished.loss_mean) or views.number(finished.loss) or 0.0) if finished else 0.0
