"""Ranks 0 to W-1 exactly once per epoch, no act of an old epoch after a new one began, a history without holes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import (
    CheckpointCommit,
    CheckpointScan,
    FaultAct,
    FaultHeal,
    FenceWrite,
    GangJoined,
    GangStart,
    GangStop,
    NodeApply,
    NodeExit,
    NodeKill,
    NodeSilent,
    Progress,
    RankExit,
    RankFinished,
    RankJoined,
    RankRestored,
    RankStart,
    RankStep,
    RecoveryDecided,
    RunBegin,
    RunEnd,
    RunInterrupted,
    RunResumed,
    StoreOpen,
)
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False

#: What a rank does once per epoch.
ONCE = (RankStart, RankJoined, RankRestored, RankStep, RankFinished, RankExit)
#: What must not happen in an epoch that is over. The death of its ranks may be told late.
ACTS = (RankStart, RankJoined, RankRestored, RankStep, Progress, CheckpointCommit, RankFinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """Who took part, when, and whether the history can be believed."""
    gangs = views.gangs(run.history)
    late, unsure = _late(run, gangs)
    failures = [
        *views.disorder(run.history), *_beginning(run), *_epochs(run, gangs),
        *(one for gang in gangs for one in (*_starts(run, gang), *_ranks(gang), *_whereabouts(gang))),
        *late, *_restarts(run), *_incarnations(run), *_budget(run),
    ]  # fmt: skip
    doubts = [
        *unsure,
        *views.unended(run.history),
        *views.unstarted(run.history),
        *(one for gang in gangs for one in _absent(run, gang)),
    ]
    world = gangs[-1].world if gangs else 0
    text = f"{world} ranks, each once in {len(gangs)} epoch{'s' * (len(gangs) != 1)}"
    return views.conclude("membership", text, failures=failures, doubts=doubts)


def _beginning(run: Run) -> Iterator[views.Finding]:
    begins, ends = run.history.of(RunBegin), run.history.of(RunEnd)
    if run.history.events and (len(begins) != 1 or begins[0].seq != run.history.events[0].seq):
        yield views.found("a history begins with its one run.begin", *begins)
    if len(ends) > 1 or (ends and ends[0].seq != run.history.events[-1].seq):
        yield views.found("a history ends with its one run.end", *ends)


def _epochs(run: Run, gangs: tuple[views.Gang, ...]) -> Iterator[views.Finding]:
    """Epochs grow by one, or by one for every decision (or resumed interrupt) that led to no gang; in the order of time."""
    reasons = Counter(e.epoch for e in run.history.of(RecoveryDecided))
    interrupts = len(run.history.of(RunInterrupted))
    if gangs and gangs[0].epoch not in (0, *(range(1, interrupts + 1))) and not reasons[gangs[0].epoch]:
        yield views.found(f"the first gang is of epoch {gangs[0].epoch}", gangs[0].began)
    for one, two in itertools.pairwise(gangs):
        unexplained = [e for e in range(one.epoch + 1, two.epoch + 1) if not reasons[e]]
        if len(unexplained) > interrupts:
            yield views.found(f"epoch {unexplained[0]} began without a decision", one.began, two.began)
        if two.began.seq < one.began.seq:
            yield views.found(f"the gang of epoch {two.epoch} was started before that of epoch {one.epoch}", two.began)
    yield from _hasty(run)


def _hasty(run: Run) -> Iterator[views.Finding]:
    """An epoch is decided once, and prepared after that."""
    decided: dict[int | None, Event] = {}
    for event in run.history.of(RecoveryDecided):
        if event.epoch in decided:
            yield views.found(f"epoch {event.epoch} was decided twice", decided[event.epoch], event)
        decided.setdefault(event.epoch, event)
    for event in run.history.with_subject(FenceWrite, StoreOpen, CheckpointScan, GangStart):
        if event.epoch in decided and event.seq < decided[event.epoch].seq:
            yield views.found(f"{event.f} of epoch {event.epoch} before that was decided", event, decided[event.epoch])


def _starts(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """One gang.start per node and epoch; together they give every rank of the world to one node."""
    nodes = Counter(start.node for start in gang.starts)
    for node, times in nodes.items():
        if times > 1:
            asked = [start.invoke for start in gang.starts]
            yield views.found(f"{times} gangs were started on {node} in epoch {gang.epoch}", *asked)
    given = Counter(rank for start in gang.starts for rank in start.invoke.data.ranks or ())
    world, over = gang.world or 0, not any(views.unended(run.history))
    many = [rank for rank, times in given.items() if times > 1 or rank not in range(world)]
    none = [rank for rank in range(world) if over and not given[rank]]
    if many or none:
        rank = (many + none)[0]
        yield views.found(f"epoch {gang.epoch}: rank {rank} of {world} was given out {given[rank]} times", gang.began)
    if len({start.invoke.data.world_size for start in gang.starts}) > 1:
        yield views.found(f"epoch {gang.epoch}: its nodes were told different world sizes", gang.began)


def _ranks(gang: views.Gang) -> Iterator[views.Finding]:
    """Each rank does once what is done once."""
    for kind in ONCE:
        events: tuple[Event, ...] = gang.of(kind)
        for rank, times in Counter(event.data.rank for event in events).items():
            if times > 1:
                yield views.found(f"epoch {gang.epoch}: {kind.NAME} of rank {rank} {times} times", *events)


def _whereabouts(gang: views.Gang) -> Iterator[views.Finding]:
    """A rank speaks from the node that it was given to, and only ranks of the world speak."""
    events: list[Event] = [event for kind in ONCE for event in gang.of(kind)]
    for event in events:
        rank = event.data.rank
        node = gang.ranks.get(rank)
        if node is None or node != event.node:
            yield views.found(f"epoch {gang.epoch}: rank {rank} belongs to {node} and spoke from {event.node}", event)


def _absent(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """A gang of which one rank was seen to train has all of them, and the controller saw them join."""
    if any(gang.of(kind) for kind in (GangJoined, RankStep)):
        for kind in (RankStart, RankJoined):
            missing = sorted(set(gang.ranks) - set(gang.by_rank(kind)))
            if missing:
                yield views.found(f"epoch {gang.epoch}: {kind.NAME} of rank {missing[0]} was not seen", gang.began)
    stops = [op.invoke.seq for op in views.operations(run.history, GangStop) if op.epoch == gang.epoch]
    joined = max((event.seq for event in gang.of(RankJoined)), default=0)
    in_time = gang.complete(RankJoined) and joined < min(stops, default=joined)
    if in_time and not any(event.seq > joined for event in gang.of(GangJoined)):
        yield views.found(f"epoch {gang.epoch}: all ranks joined and nobody took note of it", gang.began)


def _late(run: Run, gangs: tuple[views.Gang, ...]) -> tuple[list[views.Finding], list[views.Finding]]:
    """(acts, what may be one) of an old epoch after a new one began. What a host that was cut off has to tell arrives late."""
    times = views.clocks(run.history)
    failures: list[views.Finding] = []
    doubts: list[views.Finding] = []
    for event in run.history.of(*ACTS):
        newer = [gang for gang in gangs if event.epoch is not None and gang.epoch > event.epoch]
        orders = [(gang, times.before(gang.began, event)) for gang in newer]
        over = next((gang for gang, order in orders if order), None)
        unsure = next((gang for gang, order in orders if order is None), None)
        if over is not None:
            text = f"{event.f} of epoch {event.epoch} after epoch {over.epoch} had begun"
            failures.append(views.found(text, over.began, event))
        elif unsure is not None:
            text = f"no clock tells whether {event.f} of epoch {event.epoch} came before epoch {unsure.epoch} had begun"
            doubts.append(views.found(text, unsure.began, event))
    return failures, doubts


def _restarts(run: Run) -> Iterator[views.Finding]:
    """Only nodes that were lost, or that a fault was aimed at, are started again."""
    broken = (NodeExit, NodeSilent, NodeKill, FaultAct)
    for op in views.operations(run.history, NodeApply):
        reasons = (e for e in run.history.with_subject(*broken) if e.node == op.node and e.seq < op.invoke.seq)
        if next(reasons, None) is None:
            yield views.found(f"{op.node} was started again although nothing had happened to it", op.invoke)


def _incarnations(run: Run) -> Iterator[views.Finding]:
    """A node speaks as the incarnation that was found, or as one that a start of it brought; never again as an older one."""
    current = {node: facts.incarnation for node, facts in views.begin_nodes(run.history).items()}
    past: set[tuple[str | None, str | None]] = set()
    renewed: set[str | None] = set()
    for event in run.history.events:
        node, said = event.source.node, event.source.incarnation
        if event.kind in (NodeApply, FaultHeal):
            renewed.add(event.node)
        if event.kind in (RunResumed, RunInterrupted):
            renewed |= set(event.data.nodes or ())
        if node is None or said is None or event.source.writer == "keeper" or said == current.get(node):
            continue
        if (node, said) in past:
            if event.kind in ACTS:
                yield views.found(f"{event.f} of {node} from its incarnation {said}, which is over", event)
        elif node in renewed:
            past.add((node, str(current.get(node))))
            current[node] = said
        else:
            yield views.found(f"{event.f} of {node} from an incarnation that nobody started: {said}", event)


def _budget(run: Run) -> Iterator[views.Finding]:
    decided: tuple[Event, ...] = run.history.of(RecoveryDecided)
    if len(decided) > run.trial.recovery.max_restarts:
        yield views.found(f"{len(decided)} recoveries where {run.trial.recovery.max_restarts} were allowed", *decided)
