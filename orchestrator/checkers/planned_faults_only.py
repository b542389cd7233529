"""Every loss was caused by a planned fault, or follows from such a loss."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from .. import views
from ..model import events
from ..model.act import Act
from ..model.event import Event, History
from ..model.frozen import dataclass, field
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True


def check(run: Run, params: Params) -> Verdict:
    """An injection, an ordered end, or an earlier loss must explain each detector event."""
    losses = _Losses(run)
    failures = [*_unexplained(run, losses), *_undetected(run, losses), *_lost_keepers(run, for_memory=False)]
    doubts = [*views.not_ended(run.history), *_lost_keepers(run, for_memory=True), *_unknown_keepers(run)]
    return views.conclude("planned-faults-only", _summary(run), failures=failures, doubts=doubts)


def _summary(run: Run) -> str:
    lost = sum(len(event.data.lost or ()) for event in _replacements(run))
    if lost:
        return f"{lost} node{'s' * (lost != 1)} lost as planned, nothing else"
    is_abnormal = any(event.type == "note" and views.is_abnormal(event) for event in run.history.events)
    return "every loss was caused by a planned fault" if is_abnormal else "no loss"


@dataclass(kw_only=True)
class _Hit:
    """A fault on ``nodes``, when it was ordered, and when healed. ``active``: the nodes that it still explains.

    ``ends_nodes``: whether it explains exits; one that stops or slows a node does not. ``outlasts_start``: whether it hits a node
    that is started again, too.
    """

    nodes: frozenset[str]
    active: set[str]
    ordered: float
    ends_nodes: bool
    outlasts_start: bool
    healed: float = math.inf

    @property
    def is_healed(self) -> bool:
        return self.healed < math.inf


@dataclass(kw_only=True)
class _Damage:
    """The damage at a point of the history: attempts, and nodes that a fault or an ordered end hit.

    ``hits``: by fault. ``killed``: nodes whose end was ordered.
    ``ranks``: nodes of which a fault hit ranks alone, which explains no loss of the node; ``answered``: those of them where a signal
    has acted, so that it explains nothing of the ranks that are started later.
    Healing does not bring back ``lost`` nodes, which exited or fell silent: their exit may be reported late.
    A silence belongs to a healed fault if it began while the fault lasted, give or take ``grace_s``.
    """

    grace_s: float
    epochs: set[int] = field(default_factory=set)
    hits: dict[str, _Hit] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)

    def explains(self, event: Event, epoch: int | None) -> bool:
        node = event.node or ""
        if event.kind is events.NodeExit:
            return node in self.killed or any(
                hit.ends_nodes
                and (node in hit.active or (node in hit.nodes and hit.ordered <= event.t <= hit.healed < math.inf))
                for hit in self.hits.values()
            )
        if event.kind is events.NodeSilent:
            return self.explains_silence(_Silence.of(event))
        return epoch in self.epochs or self._is_hit(node) or node in self.ranks

    def explains_silence(self, silence: _Silence) -> bool:
        if self._is_hit(silence.node):
            return True
        return any(
            hit.is_healed
            and silence.node in hit.nodes
            and silence.earliest <= hit.healed + self.grace_s
            and silence.latest >= hit.ordered - self.grace_s
            for hit in self.hits.values()
        )

    def _is_hit(self, node: str) -> bool:
        return node in self.killed or any(node in hit.active for hit in self.hits.values())


@dataclass(frozen=True, kw_only=True)
class _Silence:
    """The silence of a node that ``event`` shows. It began between ``earliest`` and ``latest``; the defaults match no healed fault."""

    event: Event
    node: str
    earliest: float = math.inf
    latest: float = -math.inf

    @classmethod
    def of(cls, event: Event[events.NodeSilent | events.NodeSuspect]) -> _Silence:
        if event.data.silent_s is None:
            return cls(event=event, node=event.node or "")
        begin = event.t - event.data.silent_s
        return cls(event=event, node=event.node or "", earliest=begin, latest=begin)


def _unexplained(run: Run, losses: _Losses) -> Iterator[views.Finding]:
    """Detector events without a cause, in order; one of them explains the later events of its gang."""
    gangs, reach, of_ranks, given_up = views.gangs(run.history), _reaches(run), _acts_on_ranks(run), losses.given_up()
    damage = _Damage(grace_s=run.trial.liveness.lost_s)
    for event in run.history.events:
        epoch = event.epoch if event.epoch is not None else views.epoch_at(gangs, event.seq)
        epochs = {epoch} if epoch is not None else set()
        for silence in given_up.get(event.seq, ()):
            if not damage.explains_silence(silence):
                yield _finding(run, silence.event, gangs)
            damage.lost |= {silence.node}
        if event.kind in (events.FaultAct, events.GangStop):
            damage.epochs |= epochs
        if event.type == "note" and views.is_abnormal(event):
            if not damage.explains(event, epoch):
                yield _finding(run, event, gangs)
                damage.epochs |= epochs
            damage.lost |= {event.node or ""} if event.kind in _LOSSES else set()
        elif event.key in of_ranks or event.kind is events.GangStart:
            _apply_to_ranks(damage, event, of_ranks.get(event.key))
        elif event.seq in losses.starts:
            _apply_start(damage, losses.starts[event.seq], is_resumed=event.kind is events.RunResumed)
        else:
            _apply_to_nodes(damage, event, reach.get(str(event.key), {event.node or ""}))


def _apply_to_nodes(damage: _Damage, event: Event, nodes: set[str]) -> None:
    """The order or the healing of a fault, or the ordered end of a node."""
    fault = "/".join(str(event.key).split("/")[:2])  # the keys are f/ID/act, f/ID/heal, f/ID/heal/2
    hit = damage.hits.get(fault)
    if event.kind is events.FaultAct:
        act = event.data.act
        damage.hits[fault] = _Hit(
            nodes=frozenset(nodes),
            active=set(nodes),
            ordered=hit.ordered if hit and not hit.is_healed else event.t,
            ends_nodes=act is None or not act.ends_no_node,
            outlasts_start=act is not None and (act.of_host or (act.ends_no_node and not _pauses(act))),
        )
    elif event.kind is events.FaultHealDone and hit:
        hit.active &= damage.lost
        hit.healed = event.t
    elif event.kind is events.NodeKill:
        damage.killed |= {event.node or ""}


def _apply_start(damage: _Damage, nodes: Collection[str], *, is_resumed: bool) -> None:
    """These nodes were started again, or a run that was suspended is resumed on them: what was done to them before is over."""
    damage.lost.difference_update(nodes)
    damage.killed.difference_update(() if is_resumed else nodes)
    for hit in damage.hits.values():
        if hit.is_healed or not (is_resumed or hit.outlasts_start):
            hit.active.difference_update(nodes)


def _pauses(act: Act) -> bool:
    return any(item.kind == "pause" for item in act.inject)


def _apply_to_ranks(damage: _Damage, event: Event, act: Act | None) -> None:
    """The order, the answer or the healing of a fault that hits ranks alone, or the start of other ranks.

    What was done inside of a rank may last.
    """
    node = {event.node or ""}
    if event.kind is events.GangStart:
        damage.ranks -= node & damage.answered
    elif event.kind is events.FaultAct:
        damage.ranks |= node
        damage.answered -= node
    elif event.kind is events.FaultActDone and act and all(item.kind == "signal" for item in act.inject):
        damage.answered |= node
    elif event.kind is events.FaultHealDone:
        damage.ranks -= node


def _acts_on_ranks(run: Run) -> dict[str | None, Act]:
    """Key of an injection or healing that hits ranks alone -> its act."""
    orders = run.history.of(events.FaultAct, events.FaultHeal)
    return {event.key: event.data.act for event in orders if event.key and event.data.act and event.data.act.of_ranks}


def _reaches(run: Run) -> dict[str, set[str]]:
    """Key of an injection or healing that hits a whole host -> the nodes of that host."""
    hosts = dict(views.hosts_of(run.history))
    for decided in run.history.of(events.RecoveryDecided):
        hosts |= decided.data.hosts or {}
    reached = {}
    for event in run.history.events:
        act = event.data.act if event.kind in (events.FaultAct, events.FaultHeal) else None
        if event.key and act and act.of_host:
            reached[event.key] = {name for name, host in hosts.items() if host == hosts.get(event.node or "")}
    return reached


def _finding(run: Run, event: Event, gangs: Sequence[views.Gang]) -> views.Finding:
    """Return the finding; of ranks that failed together it names the root cause."""
    gang = next((gang for gang in gangs if gang.epoch == event.epoch), None)
    cause = views.root_cause(run.history, gang) if gang and event.kind is events.RankExit else None
    if cause and cause.exit.data.code == 0:
        return views.finding(f"rank {cause.rank} on {cause.node} {cause.how}, which was not planned", cause.exit, event)
    event = cause.exit if cause else event
    return views.finding(_description(event, gang), event)


def _description(event: Event, gang: views.Gang | None) -> str:
    if event.kind is events.RankExit:
        rank = event.data.rank
        culprit, error = views.culprit_of(gang, rank) if gang else (rank, None)
        if gang and error and error.data.culprit is not None:
            return f"{error.data.kind} of rank {culprit} on {gang.ranks[culprit]} was not planned"
        killed = f" ({event.data.error})" if event.data.error and (event.data.code or 0) < 0 else ""
        return f"rank {rank} on {event.node} left with code {event.data.code}{killed}, which was not planned"
    if event.kind is events.GangStalled:
        reason = f" ({event.data.reason})" if event.data.reason else ""
        return f"the worker group stalled for {event.data.since_s} s, which was not planned{reason}"
    what = "exited" if event.kind is events.NodeExit else "fell silent"
    what = f"did not carry out {event.f}" if event.command else what
    return f"{event.node} {what}, which was not planned"


def _undetected(run: Run, losses: _Losses) -> Iterator[views.Finding]:
    """Recoveries without an earlier detection; the outcome of an injection does not count as one."""
    last = 0
    for decided in _replacements(run):
        if not losses.are_detected(last, decided):
            yield views.finding("a recovery was decided although no loss had been detected", decided)
        undetected = [
            node for node in decided.data.lost or () if not losses.of(node, decided) and not losses.gives_up(node, decided)
        ]  # fmt: skip
        if undetected:
            yield views.finding(
                f"{undetected[0]} was replaced although neither its exit nor its silence was detected", decided
            )
        last = decided.seq


def _replacements(run: Run) -> Sequence[Event[events.RecoveryDecided | events.RecoveryReplaced]]:
    return run.history.of(events.RecoveryDecided, events.RecoveryReplaced)


class _Losses:
    """The events that show that nodes of a run were lost.

    A node counts as lost without a report of its exit or silence if a command to its agent, or its start, fails, or if it is
    suspect when the time for the gang to stop is over.
    """

    def __init__(self, run: Run) -> None:
        self._history = run.history
        #: Seq of the response or the resumption -> the nodes that it shows as alive. A response after its deadline counts for nothing.
        self.starts: Mapping[int, Collection[str]] = {
            **{event.seq: {event.node or ""} for event in _applied(run.history)},
            **{event.seq: (event.data.nodes or {}).keys() for event in run.history.of(events.RunResumed) if _was_suspended(run, event)},
        }  # fmt: skip

    def are_detected(self, after: int, decided: Event) -> bool:
        between = (event for event in self._history.events if after < event.seq < decided.seq)
        return any(views.is_abnormal(event) or _failed(event) for event in between)

    def of(self, node: str, decided: Event) -> Event | None:
        """The report of its exit or silence since its last start, which is judged where it stands."""
        return next((event for event in self._since_start(node, decided) if event.kind in _LOSSES), None)

    def given_up(self) -> Mapping[int, Sequence[_Silence]]:
        """Seq of the event that ended the wait for a node -> the silences of the nodes that were lost by it."""
        silences: dict[int, dict[str, _Silence]] = {}
        kinds = (events.RecoveryDecided, events.RecoveryReplaced, events.RecoveryWaiting, events.RecoveryRefused)
        for decided in self._history.of(*kinds):
            for node in decided.data.lost or ():
                given_up = None if self.of(node, decided) else self.gives_up(node, decided)
                if given_up:
                    seq, silence = given_up
                    silences.setdefault(seq, {})[node] = silence
        return {seq: tuple(by_node.values()) for seq, by_node in silences.items()}

    def gives_up(self, node: str, decided: Event) -> tuple[int, _Silence] | None:
        """The seq of the event by which the node was given up, and the silence for which it was."""
        since_start = self._since_start(node, decided)
        if given_up := self._by_time(since_start, decided):
            return given_up
        failed = next((event for event in reversed(since_start) if _failed(event)), None)
        if failed is None:
            return None
        ordered = next((event for event in since_start if event.key == failed.key and event.type == "invoke"), failed)
        suspicion = _suspicion(since_start, failed)
        earliest = min(ordered.t, _Silence.of(suspicion).earliest) if suspicion else ordered.t
        return failed.seq, _Silence(event=failed, node=node, earliest=earliest, latest=failed.t)

    def _by_time(self, since_start: Sequence[Event], decided: Event) -> tuple[int, _Silence] | None:
        """Return whether it was suspect when the time for this gang to stop was over: it is not awaited longer."""
        attempt = (decided.epoch or 0) - (decided.kind is events.RecoveryDecided)
        settled = next(
            (e for e in self._history.of(events.TimerDone) if e.seq < decided.seq and e.key == f"e{attempt}/settle"),
            None,
        )
        suspicion = _suspicion(since_start, settled) if settled else None
        return (settled.seq, _Silence.of(suspicion)) if settled and suspicion else None

    def _since_start(self, node: str, decided: Event) -> Sequence[Event]:
        """The events of a node from its last start to the decision."""
        begin = max((seq for seq, nodes in self.starts.items() if seq < decided.seq and node in nodes), default=0)
        return [event for event in self._history.events if event.node == node and begin <= event.seq < decided.seq]


_LOSSES = (events.NodeExit, events.NodeSilent)
#: Commands whose failure shows a node as lost.
_COMMANDS = (
    events.FenceWrite, events.StoreOpen, events.CheckpointScan, events.GangStart, events.GangStop,
    events.NodeApply, events.NodeKill,
)  # fmt: skip


def _failed(event: Event) -> bool:
    return event.command in _COMMANDS and event.type in ("fail", "info")


def _suspicion(since_start: Sequence[Event], at: Event) -> Event[events.NodeSuspect] | None:
    """The suspicion of a node that lasted at this event."""
    kinds = (events.NodeSuspect, events.NodeHeard)
    last = next((event for event in reversed(since_start) if event.kind in kinds and event.seq < at.seq), None)
    return last if last is not None and last.kind is events.NodeSuspect else None


def _applied(history: History) -> Iterator[Event]:
    """The responses to starts of nodes."""
    outcomes = (operation.outcome for operation in views.operations(history, events.NodeApply))
    return (event for event in outcomes if event is not None and event.kind is events.NodeApplyDone)


def _was_suspended(run: Run, resumed: Event) -> bool:
    """Return whether the run was interrupted before; else its orchestrator was replaced while its attempt went on."""
    earlier = (e for e in run.history.of(events.RunInterrupted, events.GangStart) if e.seq < resumed.seq)
    last = max(earlier, key=lambda event: event.seq, default=None)
    return last is not None and last.kind is events.RunInterrupted


def _lost_keepers(run: Run, *, for_memory: bool) -> Iterator[views.Finding]:
    """Keepers that lived when the run began and not when its files were gathered, unless their host was powered off.

    ``for_memory``: those that the kernel killed for memory, which is a loss of the bed and proves nothing about the job; else the others.
    """
    begin, gathered = run.history.first(events.RunBegin), run.history.last(events.GatherDone)
    if begin is None or gathered is None:
        return
    for host, pid in _keepers(begin).items():
        now, loss = _keepers(gathered).get(host, pid), (gathered.data.keeper_losses or {}).get(host)
        if pid and now != pid and bool(loss) == for_memory and host not in _powered_off(run):
            after = f"; its successor has pid {now}" if now else ""
            why = f" ({loss}): a loss of the bed, not of the job" if loss else ", which was not planned"
            yield views.finding(f"the host agent on {host} (pid {pid}) ended{why}{after}", begin, gathered)


def _unknown_keepers(run: Run) -> Iterator[views.Finding]:
    begin, gathered = run.history.first(events.RunBegin), run.history.last(events.GatherDone)
    if begin is not None and gathered is not None:
        for host in sorted(_keepers(begin).keys() - _keepers(gathered).keys() - _powered_off(run)):
            yield views.finding(f"it is not known whether the host agent on {host} lived when the run ended", gathered)


def _keepers(event: Event[events.RunBegin] | Event[events.GatherDone]) -> dict[str, int]:
    return dict(event.data.keeper_pids or {})


def _powered_off(run: Run) -> set[str]:
    """The hosts that a planned fault powered off, and their keepers with them."""
    hosts = views.hosts_of(run.history)
    acts = [event for event in run.history.of(events.FaultAct) if event.node in hosts]
    return {hosts[event.node or ""] for event in acts if event.data.act and _cuts_power(event.data.act)}


def _cuts_power(act: Act) -> bool:
    return any(primitive.kind == "power" and primitive.args.get("of") == "host" for primitive in act.inject)
