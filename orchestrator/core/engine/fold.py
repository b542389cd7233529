"""Fold a history: the state and the open commands with which a new orchestrator takes over a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model.event import Command, Event
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
