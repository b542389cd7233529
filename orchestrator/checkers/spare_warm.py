"""A spare that took over was warm: the same process since `up`, with torch imported before its ranks were forked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
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
    used = [(event, node) for event in run.history.of("recovery.decided") for node in _spares(run, event)]
    failures = [one for decided, node in used for one in (*_changed(run, decided, node), *_cold(run, decided, node))]
    doubts = [*(one for decided, node in used for one in _unseen(run, decided, node)), *views.unended(run.history)]
    names = ", ".join(node for _, node in used)
    text = (
        f"{names}: same process since up, {len(WARM)} modules imported before the fork" if used else "no spare was used"
    )
    return views.conclude("spare-warm", text, failures=failures, doubts=doubts)


def _spares(run: Run, decided: Event) -> Iterator[str]:
    """The nodes that took a slot of a node that a spare was to replace."""
    before = views.slots_at(run.history, decided.seq - 1)
    after = views.listing(decided.value.get("slots"))
    policies = views.mapping(decided.value.get("policy"))
    for old, new in zip(before, after, strict=False):
        if old != new and policies.get(old) == "spare":
            yield str(new)


def _ranks(run: Run, decided: Event, node: str) -> list[Event]:
    """The starts of the ranks that the node forked for the new epoch, or for the next if that one was cut off before."""
    later = (one for one in views.gangs(run.history) if decided.epoch is not None and one.epoch >= decided.epoch)
    starts = ([event for event in gang.of("rank.start") if event.node == node] for gang in later)
    return next((found for found in starts if found), [])


def _changed(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    """Its agent is no longer the one that `up` left."""
    facts = views.begin_nodes(run.history).get(node, {})
    for event in _ranks(run, decided, node):
        if event.source.incarnation != facts.get("incarnation"):
            yield views.found(f"{node} was started during the run: incarnation {event.source.incarnation}", event)
        elif event.value.get("ppid") not in (None, agent := _agent(run, event) or facts.get("pid")):
            said = event.value.get("ppid")
            yield views.found(f"a rank of {node} was forked by process {said}, not by {agent}", event)
    for event in run.history.of("node.exit", "node.apply"):
        if event.node == node and event.seq < decided.seq:
            yield views.found(f"{node} did not live from `up` to the failover: {event.f}", event)


def _agent(run: Run, start: Event) -> object:
    """The pid of the agent that started a rank, as it told itself: that of a container sees others than its host does."""
    asked = (event for event in run.history.of("gang.start") if event.type == "ok" and event.source.node == start.node)
    same = (
        event for event in asked if event.epoch == start.epoch and event.source.incarnation == start.source.incarnation
    )
    return next((event.value.get("agent") for event in same), None)


def _cold(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    for event in _ranks(run, decided, node):
        missing = [name for name in WARM if name not in views.listing(event.value.get("preloaded"))]
        if missing:
            yield views.found(f"rank {event.value.get('rank')} on {node} had to import {missing[0]}", event)


def _unseen(run: Run, decided: Event, node: str) -> Iterator[views.Finding]:
    starts = _ranks(run, decided, node)
    if not starts:
        yield views.found(f"no rank was seen to start on {node}", decided)
    for event in starts:
        if event.value.get("ppid") is None:
            yield views.found(f"the parent of rank {event.value.get('rank')} on {node} is not known", event)
    if node not in views.begin_nodes(run.history):
        yield views.found(f"{node} was not there when the run began", decided)
