"""Everything that broke was broken by a planned fault, or is a consequence of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .. import views
from ..model.act import OF_HOSTS
from ..model.event import Event
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
    lost = sum(len(views.listing(event.value.get("lost"))) for event in run.history.of("recovery.decided"))
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
        if event.f == "node.silent" and self._late(event):
            return True
        if event.f in ("node.exit", "node.silent"):
            return event.node in self.nodes
        return epoch in self.epochs or event.node in self.nodes

    def _late(self, event: Event) -> bool:
        """Whether the silence began under a fault on this node that is healed by now, or in the grace after its heal."""
        node, silent_s = event.node or "", views.number(event.value.get("silent_s"))
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
        if event.type == "invoke" and event.f in ("fault.act", "node.kill"):
            hit = reach.get(str(event.key), {event.node or ""})
            damage.nodes |= hit
            damage.acted |= dict.fromkeys(hit, event.t) if event.f == "fault.act" else {}
            damage.epochs |= here if event.f == "fault.act" else set()
            damage.fell |= {event.node or ""} if event.f == "node.kill" else set()
        elif event.type == "invoke" and event.f == "gang.stop":
            damage.epochs |= here
        elif event.type == "ok" and event.f == "fault.heal":
            hit = reach.get(str(event.key), {event.node or ""})
            damage.nodes -= hit - damage.fell
            damage.healed |= dict.fromkeys(hit, event.t)
        elif event.type == "ok" and event.f == "node.apply":
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
    for event in run.history.of("fault.act", "fault.heal"):
        taken = views.names(views.mapping(event.value.get("act")).get("disables")) if event.type == "invoke" else ()
        if event.key and any(one in OF_HOSTS for one in taken):
            found[event.key] = {name for name, host in hosts.items() if host == hosts.get(event.node or "")}
    return found


def _told(event: Event, gangs: Sequence[views.Gang]) -> str:
    if event.f == "rank.exit":
        rank = views.whole(event.value.get("rank"))
        gang = next((one for one in gangs if one.epoch == event.epoch and rank is not None), None)
        culprit, said = views.blamed(gang, rank) if gang and rank is not None else (rank, None)
        if gang and said and culprit is not None and "culprit" in said.value:
            return f"{said.value.get('kind')} of rank {culprit} on {gang.ranks[culprit]}, which nothing planned"
        return f"rank {event.value.get('rank')} on {event.node} left with code {event.value.get('code')}, which nothing planned"
    if event.f == "gang.stalled":
        return f"the gang stood still for {event.value.get('since_s')} s, which nothing planned"
    what = "exited" if event.f == "node.exit" else "fell silent"
    return f"{event.node} {what}, which nothing planned"


def _undetected(run: Run) -> Iterator[views.Finding]:
    """Recovery starts from detection only, never from the outcome of our own injection."""
    last = 0
    for decided in run.history.of("recovery.decided"):
        seen = [e for e in run.history.events if last < e.seq < decided.seq and (views.abnormal(e) or _failed(e))]
        if not seen:
            yield views.found("a recovery was decided although nothing had been detected", decided)
        unseen = [node for node in views.listing(decided.value.get("lost")) if not _gone(run, node, decided)]
        if unseen:
            yield views.found(f"{unseen[0]} was given up although neither its exit nor its silence was seen", decided)
        last = decided.seq


def _failed(event: Event) -> bool:
    """A node that could not be started again is a loss of its own."""
    return event.f in ("node.apply", "node.kill", "gang.start", "gang.stop") and event.type in ("fail", "info")


def _gone(run: Run, node: object, decided: Event) -> bool:
    return any(
        event.node == node and event.seq < decided.seq and (event.f in ("node.exit", "node.silent") or _failed(event))
        for event in run.history.events
    )


def _lost_keepers(run: Run) -> Iterator[views.Finding]:
    """A keeper that lives when the run begins lives when its files are gathered, unless its host was powered off."""
    begin, gathered = run.history.first("run.begin"), _gathered(run)
    if begin is None or gathered is None:
        return
    for host, pid in _keepers(begin).items():
        now = _keepers(gathered).get(host, pid)
        if pid and now != pid and host not in _powered_off(run):
            after = f"; its successor has pid {now}" if now else ""
            yield views.found(f"the keeper on {host} (pid {pid}) ended, which nothing planned{after}", begin, gathered)


def _unknown_keepers(run: Run) -> Iterator[views.Finding]:
    begin, gathered = run.history.first("run.begin"), _gathered(run)
    if begin is not None and gathered is not None:
        for host in sorted(_keepers(begin).keys() - _keepers(gathered).keys() - _powered_off(run)):
            yield views.found(f"it is not known whether the keeper on {host} lived when the run ended", gathered)


def _keepers(event: Event) -> dict[str, object]:
    return dict(views.mapping(event.value.get("keeper_pids")))


def _gathered(run: Run) -> Event | None:
    return next((event for event in reversed(run.history.of("gather")) if event.type == "ok"), None)


def _powered_off(run: Run) -> set[str]:
    """The hosts that a planned fault powered off, and their keepers with them."""
    hosts = views.hosts_of(run.history)
    acts = [event for event in run.history.of("fault.act") if event.type == "invoke" and event.node in hosts]
    return {hosts[event.node or ""] for event in acts if _cuts_power(event)}


def _cuts_power(event: Event) -> bool:
    parts = map(views.mapping, views.listing(views.mapping(event.value.get("act")).get("inject")))
    return any(part.get("kind") == "power" and views.mapping(part.get("args")).get("of") == "host" for part in parts)
