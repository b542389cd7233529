"""Tells what each node did when: a state per node that events change, as spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..model import events
from ..model.event import Event, History
from ..model.frozen import dataclass
from ..model.payload import Payload
from .event_order import clock
from .gangs import begin_nodes, start_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The state of a node for a time. kind: start | run | held | paused | dead | idle."""

    node: str
    kind: str
    start: float
    end: float
    epoch: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    kind: str
    since: float
    epoch: int | None = None
    label: str = ""


def timeline(history: History) -> tuple[Span, ...]:
    """The spans of each node, in order of start, without gaps."""
    if not history.events:
        return ()
    when = clock(history)
    unjoined = _unjoined(history)
    states = {node: _State(kind="idle", since=0.0) for node in begin_nodes(history)}
    spans: list[Span] = []
    for event in sorted(history.events, key=lambda e: (when(e), e.seq)):
        node = event.node
        state = states.get(node) if node is not None else None
        kind = _next(event, state.kind if state else "idle")
        if event.kind is events.RankStart and (node, event.epoch) in unjoined:
            kind = "run"
        if node is None or kind is None or (state is not None and _same(state, kind, event)):
            continue
        if state is not None:
            spans += _span(node, state, when(event))
        epoch = event.epoch if event.epoch is not None else state.epoch if state else None
        states[node] = _State(kind=kind, since=when(event), epoch=epoch, label=_label(kind, event))
    end = max(map(when, history.events))
    for node, state in states.items():
        spans += _span(node, state, end)
    return tuple(sorted(spans, key=lambda span: (span.start, span.node)))


def _unjoined(history: History) -> frozenset[tuple[str | None, int | None]]:
    """(node, attempt) of scripts that join no process group, or whose launcher does: their ranks train from their start."""
    starts = (event for event in history.of(events.GangStart) if event.value.get("workload") == "script")
    joined = {(event.node, event.epoch) for event in history.of(events.RankJoined, events.RankStep)}
    return frozenset((event.node, event.epoch) for event in starts) - joined


def _same(state: _State, kind: str, event: Event) -> bool:
    return state.kind == kind and (event.epoch is None or state.epoch == event.epoch)


def _span(node: str, state: _State, end: float) -> list[Span]:
    if end <= state.since:
        return []
    epoch = None if state.kind == "idle" else state.epoch
    return [Span(node=node, kind=state.kind, start=state.since, end=end, epoch=epoch, label=state.label)]


#: Kind of event -> (states in which it counts, or None for all; the state that it leads to)
_NOTES: Mapping[type[Payload] | None, tuple[tuple[str, ...] | None, str]] = {
    events.NodeExit: (None, "dead"),
    events.AgentReady: (("dead",), "idle"),
    events.RankJoined: (("start",), "run"),
    events.RankStep: (("start",), "run"),
    events.RankHeld: (("start", "run"), "held"),
    events.RankReleased: (("held",), "run"),
    events.HoldExpired: (("held",), "run"),
    events.RankFinished: (("start", "run"), "idle"),
    events.FaultHealed: (("paused",), "idle"),
    events.LeaseOver: (("paused",), "idle"),
    events.NodeSilent: (("start", "run", "held"), "paused"),
}


def _next(event: Event, kind: str) -> str | None:
    """The state that the event leads a node to; None: it changes nothing."""
    if event.type == "note":
        allowed, new = _NOTES.get(event.kind, ((), ""))
        return new if allowed is None or kind in allowed else None
    rule: Callable[[Event, str], str | None] | None = _COMMANDS.get(event.kind)
    return rule(event, kind) if rule else None


def _acted(event: Event, kind: str) -> str | None:
    """A pause counts from its command, because a paused node reports nothing; a kill shows by the exit of the node."""
    inject = event.data.act.inject if event.data.act else ()
    pauses = any(primitive.kind == "pause" for primitive in inject)
    return "paused" if pauses and kind != "dead" else None


_COMMANDS: Mapping[type[Payload] | None, Callable[[Event, str], str | None]] = {
    events.GangStart: lambda event, kind: "start",
    events.GangStopDone: lambda event, kind: (
        "idle" if event.type == "ok" and kind in ("start", "run", "held") else None
    ),
    events.NodeKillDone: lambda event, kind: "dead" if event.type == "ok" else None,
    events.NodeApplyDone: lambda event, kind: "idle",
    events.FaultAct: _acted,
}


def _label(kind: str, event: Event) -> str:
    if kind == "dead" and event.kind is events.NodeExit:
        code = event.data.code
        return "gone" if code is None else f"exit {code}"
    if kind == "held":
        return f"waits in {event.data.phase} of step {event.data.step}"
    return start_name(event.epoch) if kind in ("start", "run") and event.epoch is not None else ""
