"""Every start has each rank once, no earlier start acts after a new one began, and the history has no gaps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.event import Event
from ..model.events import RecoveryDecided, RecoveryGrown, RecoveryReplaced
from ..model.payload import Payload
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training

ALWAYS = True

#: Notes that a rank writes once per attempt.
ONCE: tuple[type[Payload], ...] = (
    events.RankStart, events.RankJoined, events.RankRestored, events.RankStep, events.RankFinished, events.RankExit,
)  # fmt: skip
#: Acts that must not happen in an attempt that is over. The exits of its ranks may be reported late.
ACTS: tuple[type[Payload], ...] = (
    events.RankStart, events.RankJoined, events.RankRestored, events.RankStep, events.Progress, events.CheckpointCommit,
    events.RankFinished,
)  # fmt: skip
#: The decisions that begin an attempt.
NEXT = (RecoveryDecided, RecoveryGrown)
#: Commands that prepare an attempt.
PREPARE = (events.FenceWrite, events.StoreOpen, events.CheckpointScan, events.GangStart)


def check(run: Run, params: Params) -> Verdict:
    """Judge by the gangs, the reports of their ranks, and the order and numbers of all events."""
    gangs = views.gangs(run.history)
    late, unsure = _late(run, gangs)
    failures = [
        *views.disorder(run.history), *_beginning(run), *_epochs(run, gangs),
        *(finding for gang in gangs for finding in (*_starts(run, gang), *_repeated(gang), *_wrong_nodes(gang))),
        *_sizes(run, gangs), *late, *_restarts(run), *_incarnations(run), *_budget(run),
    ]  # fmt: skip
    doubts = [
        *unsure,
        *views.not_ended(run.history),
        *views.not_started(run.history),
        *(finding for gang in gangs for finding in _absent(run, gang)),
    ]
    sizes = list(dict.fromkeys(gang.world or 0 for gang in gangs)) or [0]
    counts = str(sizes[-1]) if len(sizes) == 1 else f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
    text = f"{counts} ranks, each once in {len(gangs)} start{'s' * (len(gangs) != 1)}"
    return views.conclude("membership", text, failures=failures, doubts=doubts)


def _beginning(run: Run) -> Iterator[views.Finding]:
    begins, ends = run.history.of(events.RunBegin), run.history.of(events.RunEnd)
    if run.history.events and (len(begins) != 1 or begins[0].seq != run.history.events[0].seq):
        yield views.finding("a history begins with its only run.begin", *begins)
    if len(ends) > 1 or (ends and ends[0].seq != run.history.events[-1].seq):
        yield views.finding("a history ends with its only run.end", *ends)


def _epochs(run: Run, gangs: tuple[views.Gang, ...]) -> Iterator[views.Finding]:
    """Attempts are numbered in sequence. Numbers are left out only where a decision or a resumed interrupt led to no gang."""
    reasons = Counter(e.epoch for e in run.history.of(*NEXT))
    interrupts = len(run.history.of(events.RunInterrupted))
    if gangs and gangs[0].epoch not in (0, *(range(1, interrupts + 1))) and not reasons[gangs[0].epoch]:
        yield views.finding(f"the first worker group is of {views.start_name(gangs[0].epoch)}", gangs[0].began)
    for earlier, later in itertools.pairwise(gangs):
        unexplained = [e for e in range(earlier.epoch + 1, later.epoch + 1) if not reasons[e]]
        if len(unexplained) > interrupts:
            yield views.finding(
                f"{views.start_name(unexplained[0])} began without a decision", earlier.began, later.began
            )
        if later.began.seq < earlier.began.seq:
            yield views.finding(
                f"{views.start_name(later.epoch)} came before {views.start_name(earlier.epoch)}", later.began
            )
    yield from _undecided(run)


def _undecided(run: Run) -> Iterator[views.Finding]:
    """Attempts that were decided twice, or prepared before their decision."""
    decided: dict[int | None, Event[RecoveryDecided | RecoveryGrown]] = {}
    for event in run.history.of(*NEXT):
        if event.epoch in decided:
            yield views.finding(f"{views.start_name(event.epoch)} was decided twice", decided[event.epoch], event)
        decided.setdefault(event.epoch, event)
    prepared = {kind.NAME for kind in PREPARE}
    for event in run.history.events:
        if event.f in prepared and event.epoch in decided and event.seq < decided[event.epoch].seq:
            text = f"{event.f} of {views.start_name(event.epoch)} came before its decision"
            yield views.finding(text, event, decided[event.epoch])


def _starts(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """One gang.start per node and attempt; together they assign every rank of the world to one node."""
    moves = views.replacements(run.history, gang)
    nodes = Counter(start.node for start in gang.starts)
    for node, times in nodes.items():
        if times > (node in views.first_slots(gang).values()) + sum(node == new for _, new in moves):
            invokes = [start.invoke for start in gang.starts]
            yield views.finding(
                f"{times} worker groups were started on {node} in {views.start_name(gang.epoch)}", *invokes
            )
    assigned = Counter(rank for start in gang.starts for rank in start.invoke.data.ranks or ())
    world, is_over = gang.world or 0, not any(views.not_ended(run.history))
    moved = Counter(slot for slot, _ in moves)
    surplus = [rank for rank, times in assigned.items() if times > 1 + moved[rank] or rank not in range(world)]
    missing = [rank for rank in range(world) if is_over and not assigned[rank]]
    if surplus or missing:
        rank = (surplus + missing)[0]
        text = f"{views.start_name(gang.epoch)}: rank {rank} of {world} was assigned {assigned[rank]} times"
        yield views.finding(text, gang.began)
    if len({start.invoke.data.world_size for start in gang.starts}) > 1:
        yield views.finding(f"{views.start_name(gang.epoch)}: its nodes received different world sizes", gang.began)


def _sizes(run: Run, gangs: tuple[views.Gang, ...]) -> Iterator[views.Finding]:
    """Attempts of another size than the trial allows, or than the decision that began them."""
    world = run.trial.world
    decided = {event.epoch: event for event in run.history.of(*NEXT)}
    for gang in gangs:
        nodes, slots = len(gang.slots), decided[gang.epoch].data.slots if gang.epoch in decided else None
        if nodes > world.nodes or (gang.world or 0) < world.least_nodes * world.ranks_per_node:
            allowed = f"{world.least_nodes} to {world.nodes}" if world.can_shrink else str(world.nodes)
            yield views.finding(
                f"{views.start_name(gang.epoch)} has {gang.world} ranks where {allowed} nodes were allowed", gang.began
            )
        elif slots is not None and (gang.world or 0) != len(slots) * world.ranks_per_node:
            text = f"{views.start_name(gang.epoch)} has {gang.world} ranks, and {len(slots)} nodes were decided"
            yield views.finding(text, gang.began, decided[gang.epoch])


def _notes(gang: views.Gang, kind: type[Payload]) -> list[Event]:
    """The notes of the ranks that the bed started, without a script's later steps and the processes that it starts."""
    events_of_kind: tuple[Event, ...] = gang.of(kind)
    notes = (event for event in events_of_kind if not str(event.source.writer).startswith("watch-"))
    return [event for event in notes if kind is not events.RankStep or event.data.mark != "newest"]


def _repeated(gang: views.Gang) -> Iterator[views.Finding]:
    """Notes that a rank wrote more than once in one attempt, from the same incarnation of a node."""
    for kind in ONCE:
        notes = _notes(gang, kind)
        for (rank, _), times in Counter((event.data.rank, event.source.incarnation) for event in notes).items():
            if times > 1:
                yield views.finding(f"{views.start_name(gang.epoch)}: {kind.NAME} of rank {rank} {times} times", *notes)


def _wrong_nodes(gang: views.Gang) -> Iterator[views.Finding]:
    """Notes of a rank from another node than its own, and notes of ranks outside the world."""
    notes = [event for kind in ONCE for event in _notes(gang, kind)]
    for event in notes:
        rank = event.data.rank
        nodes = gang.nodes_of(rank)
        if event.node not in nodes:
            text = f"{views.start_name(gang.epoch)}: rank {rank} belongs to {gang.ranks.get(rank)}, but {event.f} came from {event.node}"
            yield views.finding(text, event)


def _absent(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """Ranks that are missing from a gang that joined or trained, and a complete gang that the controller did not note."""
    has_joined = any(gang.of(events.GangJoined))
    if has_joined or any(gang.of(events.RankStep)):
        needs_no_group = training.is_observed(run) and not has_joined
        for kind in (events.RankStart,) if needs_no_group else (events.RankStart, events.RankJoined):
            missing = sorted(set(gang.ranks) - set(gang.by_rank(kind)))
            if missing:
                text = f"{views.start_name(gang.epoch)}: {kind.NAME} of rank {missing[0]} is missing"
                yield views.finding(text, gang.began)
    stops = [op.invoke.seq for op in views.operations(run.history, events.GangStop) if op.epoch == gang.epoch]
    joined = max((event.seq for event in gang.of(events.RankJoined)), default=0)
    in_time = gang.is_complete(events.RankJoined) and joined < min(stops, default=joined)
    if in_time and not any(event.seq > joined for event in gang.of(events.GangJoined)):
        yield views.finding(f"{views.start_name(gang.epoch)}: all ranks joined, but gang.joined is missing", gang.began)


def _late(run: Run, gangs: tuple[views.Gang, ...]) -> tuple[list[views.Finding], list[views.Finding]]:
    """(failures, doubts) about acts of an earlier attempt after a new one began. Events of a host that was cut off arrive late."""
    times = views.clocks(run.history)
    failures: list[views.Finding] = []
    doubts: list[views.Finding] = []
    for event in run.history.of(*ACTS):
        newer = [gang for gang in gangs if event.epoch is not None and gang.epoch > event.epoch]
        orders = [(gang, times.before(gang.began, event)) for gang in newer]
        over = next((gang for gang, order in orders if order), None)
        unsure = next((gang for gang, order in orders if order is None), None)
        if over is not None:
            text = f"{event.f} of {views.start_name(event.epoch)} after {views.start_name(over.epoch)} had begun"
            failures.append(views.finding(text, over.began, event))
        elif unsure is not None:
            text = f"no clock shows whether {event.f} of {views.start_name(event.epoch)} came before {views.start_name(unsure.epoch)}"
            doubts.append(views.finding(text, unsure.began, event))
    return failures, doubts


def _restarts(run: Run) -> Iterator[views.Finding]:
    """Nodes that were started again without an earlier loss, and without a fault.

    A replacement, which did not live when the run began, is started when a decision has chosen it.
    """
    absent = {name for name, facts in views.begin_nodes(run.history).items() if not facts.incarnation}
    losses = (events.NodeExit, events.NodeSilent, events.NodeKill, events.FaultAct)
    for op in views.operations(run.history, events.NodeApply):
        reasons = (e for e in run.history.events if e.subject in losses and e.node == op.node and e.seq < op.invoke.seq)
        if next(reasons, None) is None and not (op.node in absent and _is_chosen(run, op) and not _lives(run, op)):
            yield views.finding(f"{op.node} was started again although it was not lost", op.invoke)


def _lives(run: Run, start: views.Operation) -> bool:
    """Return whether the node was started before, and nothing shows that it has ended since."""
    known = (events.NodeApplyDone, events.RunResumed, events.RunInterrupted)
    before = [e for e in run.history.of(*known) if e.seq < start.invoke.seq and (e.node in (None, start.node))]
    return bool(before) and before[-1].kind is events.NodeApplyDone


def _is_chosen(run: Run, start: views.Operation) -> bool:
    decided = (event for event in run.history.of(RecoveryDecided) if event.seq < start.invoke.seq)
    return any(start.node in (event.data.hosts or {}) for event in decided)


def _incarnations(run: Run) -> Iterator[views.Finding]:
    """Events of a node from an incarnation that was not started, or that is over."""
    current = {node: facts.incarnation for node, facts in views.begin_nodes(run.history).items()}
    past: set[tuple[str | None, str | None]] = set()
    renewed: set[str | None] = set()
    for event in run.history.events:
        node, incarnation = event.source.node, event.source.incarnation
        if event.kind in (events.NodeApply, events.FaultHeal):
            renewed.add(event.node)
        if event.kind in (events.RunResumed, events.RunInterrupted):
            renewed |= set(event.data.nodes or {})
        if node is None or incarnation is None or event.source.writer == "keeper" or incarnation == current.get(node):
            continue
        if (node, incarnation) in past:
            if event.kind in ACTS:
                yield views.finding(f"{event.f} of {node} from its incarnation {incarnation}, which is over", event)
        elif node in renewed:
            past.add((node, str(current.get(node))))
            current[node] = incarnation
        else:
            yield views.finding(f"{event.f} of {node} from an incarnation that was not started: {incarnation}", event)


def _budget(run: Run) -> Iterator[views.Finding]:
    decided = run.history.of(events.RecoveryDecided, RecoveryReplaced)
    if len(decided) > run.trial.recovery.max_restarts:
        yield views.finding(f"{len(decided)} recoveries where {run.trial.recovery.max_restarts} were allowed", *decided)
