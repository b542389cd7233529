"""A spare that took over was warm: the same process since `up`, with torch imported before its ranks were forked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import GangStartDone, NodeApply, NodeExit, NodeFacts, RankStart, RecoveryDecided
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False

#: What a warm agent holds in memory; the third is imported by the first optimizer step otherwise, for two seconds.
WARM = ("torch", "torch.distributed", "torch._dynamo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """Incarnation and pid as run.begin found them, the parent of the ranks, and what the ranks found imported."""
    used = [(event, node) for event in run.history.of(RecoveryDecided) for node in _spares(run, event)]
    failures = [one for decided, node in used for one in (*_changed(run, decided, node), *_cold(run, decided, node))]
    doubts = [*(one for decided, node in used for one in _unseen(run, decided, node)), *views.unended(run.history)]
    names = ", ".join(node for _, node in used)
    text = (
        f"{names}: same process since up, {len(WARM)} modules imported before the fork" if used else "no spare was used"
    )
    return views.conclude("spare-warm", text, failures=failures, doubts=doubts)


def _spares(run: Run, decided: Event[RecoveryDecided]) -> Iterator[str]:
    """The nodes that took a slot of a node that a spare was to replace."""
    before = views.slots_at(run.history, decided.seq - 1)
    after = decided.data.slots or ()
    policies = decided.data.policy or {}
    for old, new in zip(before, after, strict=False):
        if old != new and policies.get(old) == "spare":
            yield new


def _ranks(run: Run, decided: Event, node: str) -> list[Event[RankStart]]:
    """The starts of the ranks that the node forked for the new epoch, or for the next if that one was cut off before."""
    later = (one for one in views.gangs(run.history) if decided.epoch is not None and one.epoch >= decided.epoch)
    starts = ([event for event in gang.of(RankStart) if event.node == node] for gang in later)
    return next((found for found in starts if found), [])


def _changed(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    """Its agent is no longer the one that `up` left."""
    facts = views.begin_nodes(run.history).get(node, NodeFacts())
    for event in _ranks(run, decided, node):
        if event.source.incarnation != facts.incarnation:
            yield views.found(f"{node} was started during the run: incarnation {event.source.incarnation}", event)
        elif (parent := event.data.ppid) not in (None, agent := _agent(run, event) or facts.pid):
            yield views.found(f"a rank of {node} was forked by process {parent}, not by {agent}", event)
    for loss in run.history.with_subject(NodeExit, NodeApply):
        if loss.node == node and loss.seq < decided.seq:
            yield views.found(f"{node} did not live from `up` to the failover: {loss.f}", loss)


def _agent(run: Run, start: Event) -> int | None:
    """The pid of the agent that started a rank, as it told itself: that of a container sees others than its host does."""
    asked = (event for event in run.history.of(GangStartDone) if event.source.node == start.node)
    same = (
        event for event in asked if event.epoch == start.epoch and event.source.incarnation == start.source.incarnation
    )
    return next((event.data.agent for event in same), None)


def _cold(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    for event in _ranks(run, decided, node):
        missing = [name for name in WARM if name not in (event.data.preloaded or ())]
        if missing:
            yield views.found(f"rank {event.data.rank} on {node} had to import {missing[0]}", event)


def _unseen(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    starts = _ranks(run, decided, node)
    if not starts:
        yield views.found(f"no rank was seen to start on {node}", decided)
    for event in starts:
        if event.data.ppid is None:
            yield views.found(f"the parent of rank {event.data.rank} on {node} is not known", event)
    if node not in views.begin_nodes(run.history):
        yield views.found(f"{node} was not there when the run began", decided)
