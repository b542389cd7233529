"""Fold a history: the state and the open commands with which a new orchestrator takes over a run; responses that came twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.event import REPEATED, Command, Event
from ...model.events import CommandRepeated
from ...model.plan import Plan
from ...model.trial import Trial
from . import engine
from .state import State


def steps(
    trial: Trial, plan: Plan, events: Iterable[Event]
) -> Iterator[tuple[State, Event | None, tuple[Command, ...]]]:
    """State and commands after the beginning (None) and after each event.

    As in the loop that wrote the history, only the first response to a command counts; later responses are skipped.
    """
    state, commands = engine.begin(trial, plan)
    yield state, None, commands
    open_keys: set[str | None] = set()
    for event in events:
        if event.type == "invoke":
            open_keys.add(event.key)
        elif event.type != "note":
            if event.key not in open_keys:
                continue
            open_keys.remove(event.key)
        state, commands = engine.step(trial, state, event)
        yield state, event, commands


def open_commands(trial: Trial, plan: Plan, events: list[Event]) -> tuple[State, tuple[Command, ...]]:
    """The final state of a history, and all commands that were issued, in order (resume issues the remaining ones)."""
    folded = tuple(steps(trial, plan, events))
    return folded[-1][0], tuple(command for _, _, commands in folded for command in commands)


def mark_repeated(event: Event, history: Iterable[Event]) -> Event:
    """The event to record. ``history``: the events so far.

    A response is a duplicate only if its writer marks it as repeated and its content is equal; a command that was executed
    twice keeps both responses.
    """
    if event.type not in ("ok", "fail") or not event.value.get(REPEATED):
        return event
    if not any(_same(event, earlier) for earlier in history):
        return event
    repeated = CommandRepeated(f=event.f, key=event.key)
    return replace(event, type="note", f=repeated.NAME, key=None, value=codec.plain(repeated))


def _same(event: Event, other: Event) -> bool:
    about = (event.type, event.f, event.key, event.node)
    return (other.type, other.f, other.key, other.node) == about and _content(other) == _content(event)


def _content(event: Event) -> dict[str, Any]:
    return {name: item for name, item in event.value.items() if name != REPEATED}
