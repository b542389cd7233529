"""Every loss was caused by a planned fault, or follows from such a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .. import views
from ..model import events
from ..model.act import Act
from ..model.event import Event
from ..model.payload import Payload
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False
#: The end of the key of the timer after which nodes without a heartbeat are given up.
SETTLED = "/settle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No parameters."""


def check(run: Run, params: Params) -> Verdict:
    """An injection, an ordered end, or an earlier loss must explain each detector event."""
    failures = [*_unexplained(run), *_undetected(run), *_lost_keepers(run)]
    doubts = [*views.not_ended(run.history), *_unknown_keepers(run)]
    return views.conclude("planned-faults-only", _summary(run), failures=failures, doubts=doubts)


def _summary(run: Run) -> str:
    lost = sum(len(event.data.lost or ()) for event in _replacements(run))
    if lost:
        return f"{lost} node{'s' * (lost != 1)} lost as planned, nothing else"
    is_abnormal = any(event.type == "note" and views.is_abnormal(event) for event in run.history.events)
    return "every loss was caused by a planned fault" if is_abnormal else "no loss"


@dataclass(kw_only=True)
class _Damage:
    """The damage at a point of the history: attempts, and nodes that a fault or an ordered end hit.

    ``slowed``: nodes that a fault has stopped or slowed, which explains no exit.
    ``ranks``: nodes of which a fault hit ranks alone, which explains no loss of the node; ``answered``: those of them where a signal
    has acted, so that it explains nothing of the ranks that are started later.
    Healing does not bring back ``lost`` nodes, which exited or whose end was ordered: their exit may be reported late.
    ``acted``, ``healed``: when a fault on a node was last ordered, and healed. A silence that began between the two, give
    or take ``grace_s``, belongs to the fault.
    """

    grace_s: float
    epochs: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    slowed: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    acted: dict[str, float] = field(default_factory=dict)
    healed: dict[str, float] = field(default_factory=dict)

    def explains(self, event: Event, epoch: int | None) -> bool:
        if event.kind is events.NodeExit:
            return event.node in self.nodes
        if event.kind is events.NodeSilent:
            return self.explains_silence(event.node or "", _begin_of_silence(event))
        return epoch in self.epochs or event.node in self.nodes | self.slowed | self.ranks

    def explains_silence(self, node: str, since: float | None) -> bool:
        """Whether the node is under a fault, or its silence began under one that is healed by now, or within ``grace_s``."""
        if node in self.nodes | self.slowed or since is None or node not in self.healed:
            return node in self.nodes | self.slowed
        begin = self.acted.get(node, self.healed[node]) - self.grace_s
        return begin <= since <= self.healed[node] + self.grace_s


def _unexplained(run: Run) -> Iterator[views.Finding]:
    """Detector events without a cause, in order; one of them explains the later events of its gang."""
    gangs, reach, of_ranks = views.gangs(run.history), _reaches(run), _acts_on_ranks(run)
    damage = _Damage(grace_s=run.trial.liveness.lost_s)
    for event in run.history.events:
        epoch = event.epoch if event.epoch is not None else views.epoch_at(gangs, event.seq)
        epochs = {epoch} if epoch is not None else set()
        if event.kind in (events.FaultAct, events.GangStop):
            damage.epochs |= epochs
        if event.type == "note" and views.is_abnormal(event):
            damage.lost |= {event.node or ""}
            if not damage.explains(event, epoch):
                yield _finding(run, event, gangs)
                damage.epochs |= epochs
        elif event.kind in (events.RecoveryDecided, events.RecoveryReplaced):
            for given_up, since in _given_up(run, event):
                if not damage.explains_silence(given_up.node or "", since):
                    yield _finding(run, given_up, gangs)
        elif event.key in of_ranks or event.kind is events.GangStart:
            _apply_to_ranks(damage, event, of_ranks.get(event.key))
        else:
            _apply_to_nodes(damage, event, reach.get(str(event.key), {event.node or ""}))


def _apply_to_nodes(damage: _Damage, event: Event, hit: set[str]) -> None:
    """The order or the healing of a fault, the ordered end of a node, or its start."""
    if event.kind is events.FaultAct:
        hits_all = damage.slowed if event.data.act and event.data.act.ends_no_node else damage.nodes
        hits_all |= hit
        damage.acted |= dict.fromkeys(hit, event.t)
    elif event.kind is events.NodeKill:
        damage.nodes |= hit
        damage.lost |= {event.node or ""}
    elif event.kind is events.FaultHealDone:
        damage.nodes -= hit - damage.lost
        damage.slowed -= hit - damage.lost
        damage.healed |= dict.fromkeys(hit, event.t)
    elif event.kind is events.NodeApplyDone:
        for nodes in (damage.nodes, damage.slowed, damage.lost):
            nodes.discard(event.node or "")


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
    hosts = views.hosts_of(run.history)
    reached = {}
    for event in run.history.events:
        act = event.data.act if event.kind in (events.FaultAct, events.FaultHeal) else None
        if event.key and act and act.of_host:
            reached[event.key] = {name for name, host in hosts.items() if host == hosts.get(event.node or "")}
    return reached


def _finding(run: Run, event: Event, gangs: Sequence[views.Gang]) -> views.Finding:
    """Of the ranks that failed together, the finding names the root cause."""
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
        return f"rank {rank} on {event.node} left with code {event.data.code}, which was not planned"
    if event.kind is events.GangStalled:
        reason = f" ({event.data.reason})" if event.data.reason else ""
        return f"the gang stalled for {event.data.since_s} s, which was not planned{reason}"
    what = "exited" if event.kind is events.NodeExit else "fell silent"
    what = f"did not carry out {event.f}" if event.command else what
    return f"{event.node} {what}, which was not planned"


def _begin_of_silence(event: Event[events.NodeSilent | events.NodeSuspect]) -> float | None:
    return None if event.data.silent_s is None else event.t - event.data.silent_s


def _undetected(run: Run) -> Iterator[views.Finding]:
    """Recoveries without an earlier detection; the outcome of an injection does not count as one."""
    last = 0
    for decided in _replacements(run):
        detections = [
            e for e in run.history.events
            if last < e.seq < decided.seq and (views.is_abnormal(e) or _failed(e, *_AGENT, *_KEEPER))
        ]  # fmt: skip
        if not detections:
            yield views.finding("a recovery was decided although no loss had been detected", decided)
        undetected = [
            node for node in decided.data.lost or ()
            if not _is_gone(run, node, decided) and not _given_up_by(run, node, decided)
        ]  # fmt: skip
        if undetected:
            yield views.finding(
                f"{undetected[0]} was replaced although neither its exit nor its silence was detected", decided
            )
        last = decided.seq


def _replacements(run: Run) -> Sequence[Event[events.RecoveryDecided | events.RecoveryReplaced]]:
    return run.history.of(events.RecoveryDecided, events.RecoveryReplaced)


#: Commands whose failure shows a node as lost: of an agent that does not respond, and of a keeper that could not start it again.
_AGENT = (events.GangStart, events.GangStop)
_KEEPER = (events.NodeApply, events.NodeKill)


def _failed(event: Event, *commands: type[Payload]) -> bool:
    return event.command in commands and event.type in ("fail", "info")


def _since_start(run: Run, node: str, decided: Event) -> Sequence[Event]:
    """The events of a node from its last start to the decision."""
    earlier = [event for event in run.history.events if event.node == node and event.seq < decided.seq]
    starts = [index for index, event in enumerate(earlier) if event.kind is events.NodeApplyDone]
    return earlier[starts[-1] :] if starts else earlier


def _is_gone(run: Run, node: str, decided: Event) -> bool:
    """Whether its loss was reported, which has been judged then, or it could not be started again."""
    return any(
        event.kind in (events.NodeExit, events.NodeSilent) or _failed(event, *_KEEPER)
        for event in _since_start(run, node, decided)
    )


def _given_up(run: Run, decided: Event) -> Iterator[tuple[Event, float | None]]:
    """What ended the lost nodes of which neither an exit nor a silence was reported: each counts as a silence."""
    lost = (node for node in decided.data.lost or () if not _is_gone(run, node, decided))
    return (given_up for node in lost if (given_up := _given_up_by(run, node, decided)))


def _given_up_by(run: Run, node: str, decided: Event) -> tuple[Event, float | None] | None:
    """The suspicion or the failed command by which a node was given up, and since when it had been silent."""
    if suspicion := _suspicion(run, node, decided):
        return suspicion, _begin_of_silence(suspicion)
    since_start = _since_start(run, node, decided)
    failed = next((event for event in reversed(since_start) if _failed(event, *_AGENT)), None)
    if failed is None:
        return None
    ordered = next((event for event in since_start if event.key == failed.key and event.type == "invoke"), failed)
    return failed, ordered.t


def _suspicion(run: Run, node: str, decided: Event) -> Event[events.NodeSuspect] | None:
    """The suspicion that lasted when the time for the gang to stop was over: nodes are not awaited longer."""
    kinds = (events.NodeSuspect, events.NodeHeard, events.NodeApplyDone)
    last = next((event for event in reversed(_since_start(run, node, decided)) if event.kind in kinds), None)
    if last is None or last.kind is not events.NodeSuspect:
        return None
    settled = (event for event in run.history.of(events.TimerDone) if str(event.key).endswith(SETTLED))
    return last if any(last.seq < event.seq < decided.seq for event in settled) else None


def _lost_keepers(run: Run) -> Iterator[views.Finding]:
    """Keepers that lived when the run began and not when its files were gathered, unless their host was powered off."""
    begin, gathered = run.history.first(events.RunBegin), _gathered(run)
    if begin is None or gathered is None:
        return
    for host, pid in _keepers(begin).items():
        now = _keepers(gathered).get(host, pid)
        if pid and now != pid and host not in _powered_off(run):
            after = f"; its successor has pid {now}" if now else ""
            yield views.finding(
                f"the keeper on {host} (pid {pid}) ended, which was not planned{after}", begin, gathered
            )


def _unknown_keepers(run: Run) -> Iterator[views.Finding]:
    begin, gathered = run.history.first(events.RunBegin), _gathered(run)
    if begin is not None and gathered is not None:
        for host in sorted(_keepers(begin).keys() - _keepers(gathered).keys() - _powered_off(run)):
            yield views.finding(f"it is not known whether the keeper on {host} lived when the run ended", gathered)


def _keepers(event: Event[events.RunBegin] | Event[events.GatherDone]) -> dict[str, int]:
    return dict(event.data.keeper_pids or {})


def _gathered(run: Run) -> Event[events.GatherDone] | None:
    return run.history.last(events.GatherDone)


def _powered_off(run: Run) -> set[str]:
    """The hosts that a planned fault powered off, and their keepers with them."""
    hosts = views.hosts_of(run.history)
    acts = [event for event in run.history.of(events.FaultAct) if event.node in hosts]
    return {hosts[event.node or ""] for event in acts if event.data.act and _cuts_power(event.data.act)}


def _cuts_power(act: Act) -> bool:
    return any(primitive.kind == "power" and primitive.args.get("of") == "host" for primitive in act.inject)
