"""What each node did when: a state per node that events change, as spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..model.event import Event, History
from .clock import clock, listing, mapping
from .gangs import begin_nodes
from .shapes import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    kind: str
    since: float
    epoch: int | None = None
    label: str = ""


def timeline(history: History) -> tuple[Span, ...]:
    """Per node what it did when, in order of start. The spans of a node follow each other without a gap."""
    if not history.events:
        return ()
    when = clock(history)
    states = {node: _State(kind="idle", since=0.0) for node in begin_nodes(history)}
    spans: list[Span] = []
    for event in sorted(history.events, key=lambda e: (when(e), e.seq)):
        node = event.node
        state = states.get(node) if node is not None else None
        kind = _next(event, state.kind if state else "idle")
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


def _same(state: _State, kind: str, event: Event) -> bool:
    return state.kind == kind and (event.epoch is None or state.epoch == event.epoch)


def _span(node: str, state: _State, end: float) -> list[Span]:
    if end <= state.since:
        return []
    epoch = None if state.kind == "idle" else state.epoch
    return [Span(node=node, kind=state.kind, start=state.since, end=end, epoch=epoch, label=state.label)]


#: f -> (states in which it counts, or None for all; the state that it leads to)
_NOTES: Mapping[str, tuple[tuple[str, ...] | None, str]] = {
    "node.exit": (None, "dead"),
    "agent.ready": (("dead",), "idle"),
    "rank.joined": (("start",), "run"),
    "rank.held": (("start", "run"), "held"),
    "rank.released": (("held",), "run"),
    "hold.expired": (("held",), "run"),
    "rank.finished": (("start", "run"), "idle"),
    "fault.healed": (("paused",), "idle"),
    "lease.over": (("paused",), "idle"),
    "node.silent": (("start", "run", "held"), "paused"),
}


def _next(event: Event, kind: str) -> str | None:
    """The state that the event leads a node to; None: it changes nothing."""
    if event.type == "note":
        allowed, new = _NOTES.get(event.f, ((), ""))
        return new if allowed is None or kind in allowed else None
    rule: Callable[[Event, str], str | None] | None = _OPERATIONS.get((event.type, event.f))
    return rule(event, kind) if rule else None


def _acted(event: Event, kind: str) -> str | None:
    """A pause is a state from its invoke on, for the node itself is silent then; a kill shows by its exit."""
    inject = listing(mapping(event.value.get("act")).get("inject"))
    pauses = any(mapping(primitive).get("kind") == "pause" for primitive in inject)
    return "paused" if pauses and kind != "dead" else None


_OPERATIONS: Mapping[tuple[str, str], Callable[[Event, str], str | None]] = {
    ("invoke", "gang.start"): lambda event, kind: "start",
    ("ok", "gang.stop"): lambda event, kind: "idle" if kind in ("start", "run", "held") else None,
    ("ok", "node.kill"): lambda event, kind: "dead",
    ("ok", "node.apply"): lambda event, kind: "idle",
    ("invoke", "fault.act"): _acted,
}


def _label(kind: str, event: Event) -> str:
    if kind == "dead" and event.f == "node.exit":
        code = event.value.get("code")
        return "gone" if code is None else f"exit {code}"
    if kind == "held":
        return f"held in {event.value.get('phase')} of step {event.value.get('step')}"
    return f"epoch {event.epoch}" if kind in ("start", "run") and event.epoch is not None else ""
