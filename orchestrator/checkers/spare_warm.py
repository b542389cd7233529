"""Every spare that was used was ready: the same process since `up`, with torch imported before its ranks were forked."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.event import Event
from ..model.events import RankStart, RecoveryDecided
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict

#: Modules that a warm agent has imported; otherwise the first optimizer step imports the third, which takes two seconds.
WARM = ("torch", "torch.distributed", "torch._dynamo")


def check(run: Run, params: Params) -> Verdict:
    """Judge by incarnation and pid in run.begin, the parent process of the ranks, and the modules that were imported before the fork."""
    used = [(event, node) for event in run.history.of(events.RecoveryDecided) for node in _spares(run, event)]
    failures = [
        finding for decided, node in used for finding in (*_changed(run, decided, node), *_cold(run, decided, node))
    ]
    doubts = [
        *(finding for decided, node in used for finding in _unseen(run, decided, node)),
        *views.not_ended(run.history),
    ]
    names = ", ".join(node for _, node in used)
    text = (
        f"{names}: same process since up, {len(WARM)} modules imported before the fork" if used else "no spare was used"
    )
    return views.conclude("spare-warm", text, failures=failures, doubts=doubts)


def _spares(run: Run, decided: Event[RecoveryDecided]) -> Iterator[str]:
    """The new nodes, if the policy of a lost node is ``spare``; not those by which the gang had shrunk before."""
    known = {*views.slots_at(run.history, decided.seq - 1), *(decided.data.joined or ())}
    if "spare" in (decided.data.policy or {}).values():
        yield from (node for node in decided.data.slots or () if node not in known)


def _ranks(run: Run, decided: Event[RecoveryDecided], node: str) -> list[Event[RankStart]]:
    """The starts of the node's ranks in the new attempt, or in the next one if that attempt was cut off before."""
    later = (gang for gang in views.gangs(run.history) if decided.epoch is not None and gang.epoch >= decided.epoch)
    starts = ([event for event in gang.of(events.RankStart) if event.node == node] for gang in later)
    return next((ranks for ranks in starts if ranks), [])


def _changed(run: Run, decided: Event[RecoveryDecided], node: str) -> Iterator[views.Finding]:
    """Ranks of another agent than the one that `up` started."""
    facts = views.begin_nodes(run.history).get(node)
    for event in _ranks(run, decided, node):
        if event.source.incarnation != (facts.incarnation if facts else None):
            yield views.finding(f"{node} was started during the run: incarnation {event.source.incarnation}", event)
        elif event.data.ppid not in (None, agent := _agent(run, event) or (facts.pid if facts else None)):
            parent = event.data.ppid
            yield views.finding(f"a rank of {node} was forked by process {parent}, not by {agent}", event)
    for event in run.history.with_subject(events.NodeExit, events.NodeApply):
        if event.node == node and event.seq < decided.seq:
            yield views.finding(f"{node} did not live from `up` to the failover: {event.f}", event)


def _agent(run: Run, start: Event[RankStart]) -> int | None:
    """The pid of the agent that started a rank, by its own report: in a container it differs from that on the host."""
    about = start.source.node, start.epoch, start.source.incarnation
    started = (
        event.data.agent
        for event in run.history.of(events.GangStartDone)
        if (event.source.node, event.epoch, event.source.incarnation) == about
    )
    return next(started, None)


def _cold(run: Run, decided: Event[RecoveryDecided], node: str) -> Iterator[views.Finding]:
    for event in _ranks(run, decided, node):
        missing = [name for name in WARM if name not in (event.data.preloaded or ())]
        if missing:
            yield views.finding(f"rank {event.data.rank} on {node} had to import {missing[0]}", event)


def _unseen(run: Run, decided: Event[RecoveryDecided], node: str) -> Iterator[views.Finding]:
    starts = _ranks(run, decided, node)
    if not starts:
        yield views.finding(f"no rank reported its start on {node}", decided)
    for event in starts:
        if event.data.ppid is None:
            yield views.finding(f"the parent of rank {event.data.rank} on {node} is not known", event)
    if node not in views.begin_nodes(run.history):
        yield views.finding(f"{node} did not exist when the run began", decided)
