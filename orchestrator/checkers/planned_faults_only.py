"""Everything that broke was broken by a planned fault, or is a consequence of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .. import views
from ..model.event import Event
from ..model.events import (
    FaultAct,
    FaultHeal,
    FaultHealDone,
    GangStalled,
    GangStart,
    GangStop,
    GatherDone,
    NodeApply,
    NodeApplyDone,
    NodeExit,
    NodeKill,
    NodeSilent,
    RankExit,
    RecoveryDecided,
    RunBegin,
)
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """Each detector's event is explained by an injection, by an end that we ordered ourselves, or by an earlier loss."""
    failures = [*_unexplained(run), *_undetected(run), *_lost_keepers(run)]
    doubts = [*views.unended(run.history), *_unknown_keepers(run)]
    return views.conclude("planned-faults-only", _summary(run), failures=failures, doubts=doubts)


def _summary(run: Run) -> str:
    lost = sum(len(event.data.lost or ()) for event in run.history.of(RecoveryDecided))
    if lost:
        return f"{lost} node{'s' * (lost != 1)} lost as planned, nothing else"
    broke = any(event.type == "note" and views.abnormal(event) for event in run.history.events)
    return "what broke was broken by a planned fault" if broke else "nothing broke"


@dataclass(kw_only=True)
class _Damage:
    """What is broken at a point of the history: epochs, and nodes that a fault or we ourselves hit.

    What was healed has not given back the nodes that ``fell``, or whose end we ordered: that may be told late.
    ``acted``, ``healed``: when a fault on a node was last ordered, and healed. A silence that began between the two, give
    or take ``grace_s``, belongs to the fault.
    """

    grace_s: float
    epochs: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    fell: set[str] = field(default_factory=set)
    acted: dict[str, float] = field(default_factory=dict)
    healed: dict[str, float] = field(default_factory=dict)

    def explains(self, event: Event, epoch: int | None) -> bool:
        if event.kind is NodeSilent and self._late(event):
            return True
        if event.kind in (NodeExit, NodeSilent):
            return event.node in self.nodes
        return epoch in self.epochs or event.node in self.nodes

    def _late(self, event: Event[NodeSilent]) -> bool:
        """Whether the silence began under a fault on this node that is healed by now, or in the grace after its heal."""
        node, silent_s = event.node or "", event.data.silent_s
        if silent_s is None or node not in self.healed:
            return False
        begin = self.acted.get(node, self.healed[node]) - self.grace_s
        return begin <= event.t - silent_s <= self.healed[node] + self.grace_s


def _unexplained(run: Run) -> Iterator[views.Finding]:
    """Detector events in order; an explained one explains what the rest of its gang suffers after it."""
    gangs, reach = views.gangs(run.history), _reaches(run)
    damage = _Damage(grace_s=run.trial.liveness.lost_s)
    for event in run.history.events:
        epoch = event.epoch if event.epoch is not None else views.epoch_at(gangs, event.seq)
        here = {epoch} if epoch is not None else set()
        if event.kind in (FaultAct, NodeKill):
            hit = reach.get(str(event.key), {event.node or ""})
            damage.nodes |= hit
            damage.acted |= dict.fromkeys(hit, event.t) if event.kind is FaultAct else {}
            damage.epochs |= here if event.kind is FaultAct else set()
            damage.fell |= {event.node or ""} if event.kind is NodeKill else set()
        elif event.kind is GangStop:
            damage.epochs |= here
        elif event.kind is FaultHealDone:
            hit = reach.get(str(event.key), {event.node or ""})
            damage.nodes -= hit - damage.fell
            damage.healed |= dict.fromkeys(hit, event.t)
        elif event.kind is NodeApplyDone:
            damage.nodes.discard(event.node or "")
            damage.fell.discard(event.node or "")
        elif event.type == "note" and views.abnormal(event):
            damage.fell |= {event.node or ""}
            if not damage.explains(event, epoch):
                yield views.found(_told(event, gangs), event)
                damage.epochs |= here


def _reaches(run: Run) -> dict[str, set[str]]:
    """Key of an injection or of its healing -> the nodes that it is about: all of a host, where the host itself is hit."""
    hosts = views.hosts_of(run.history)
    found = {}
    for event in run.history.of(FaultAct, FaultHeal):
        act = event.data.act
        if event.key and act is not None and act.of_host:
            found[event.key] = {name for name, host in hosts.items() if host == hosts.get(event.node or "")}
    return found


def _told(event: Event, gangs: Sequence[views.Gang]) -> str:
    if isinstance(event.data, RankExit):
        rank, code = event.data.rank, event.data.code
        gang = next((gang for gang in gangs if gang.epoch == event.epoch), None)
        culprit, said = views.blamed(gang, rank) if gang else (rank, None)
        if gang and said and said.data.culprit is not None:
            return f"{said.data.kind} of rank {culprit} on {gang.ranks[culprit]}, which nothing planned"
        return f"rank {rank} on {event.node} left with code {code}, which nothing planned"
    if isinstance(event.data, GangStalled):
        return f"the gang stood still for {event.data.since_s} s, which nothing planned"
    what = "exited" if event.kind is NodeExit else "fell silent"
    return f"{event.node} {what}, which nothing planned"


def _undetected(run: Run) -> Iterator[views.Finding]:
    """Recovery starts from detection only, never from the outcome of our own injection."""
    last = 0
    for decided in run.history.of(RecoveryDecided):
        seen = [e for e in run.history.events if last < e.seq < decided.seq and (views.abnormal(e) or _failed(e))]
        if not seen:
            yield views.found("a recovery was decided although nothing had been detected", decided)
        unseen = [node for node in decided.data.lost or () if not _gone(run, node, decided)]
        if unseen:
            yield views.found(f"{unseen[0]} was given up although neither its exit nor its silence was seen", decided)
        last = decided.seq


def _failed(event: Event) -> bool:
    """A node that could not be started again is a loss of its own."""
    return event.command in (NodeApply, NodeKill, GangStart, GangStop) and event.type in ("fail", "info")


def _gone(run: Run, node: object, decided: Event) -> bool:
    return any(
        event.node == node and event.seq < decided.seq and (event.kind in (NodeExit, NodeSilent) or _failed(event))
        for event in run.history.events
    )


def _lost_keepers(run: Run) -> Iterator[views.Finding]:
    """A keeper that lives when the run begins lives when its files are gathered, unless its host was powered off."""
    begin, gathered = run.history.first(RunBegin), _gathered(run)
    if begin is None or gathered is None:
        return
    for host, pid in _keepers(begin).items():
        now = _keepers(gathered).get(host, pid)
        if pid and now != pid and host not in _powered_off(run):
            after = f"; its successor has pid {now}" if now else ""
            yield views.found(f"the keeper on {host} (pid {pid}) ended, which nothing planned{after}", begin, gathered)


def _unknown_keepers(run: Run) -> Iterator[views.Finding]:
    begin, gathered = run.history.first(RunBegin), _gathered(run)
    if begin is not None and gathered is not None:
        for host in sorted(_keepers(begin).keys() - _keepers(gathered).keys() - _powered_off(run)):
            yield views.found(f"it is not known whether the keeper on {host} lived when the run ended", gathered)


def _keepers(event: Event[RunBegin | GatherDone]) -> Mapping[str, int]:
    return event.data.keeper_pids or {}


def _gathered(run: Run) -> Event[GatherDone] | None:
    return run.history.last(GatherDone)


def _powered_off(run: Run) -> set[str]:
    """The hosts that a planned fault powered off, and their keepers with them."""
    hosts = views.hosts_of(run.history)
    acts = [event for event in run.history.of(FaultAct) if event.node in hosts]
    return {hosts[event.node or ""] for event in acts if _cuts_power(event)}


def _cuts_power(event: Event[FaultAct]) -> bool:
    act = event.data.act
    return act is not None and any(part.kind == "power" and part.args.get("of") == "host" for part in act.inject)
