"""Folding a history: what a new orchestrator knows when it takes a run over."""

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

    As in the loop that wrote it, only the first answer to a command counts; those that came after it are in there as well.
    """
    state, commands = engine.begin(trial, plan)
    yield state, None, commands
    unanswered: set[str | None] = set()
    for event in events:
        if event.type == "invoke":
            unanswered.add(event.key)
        elif event.type != "note":
            if event.key not in unanswered:
                continue
            unanswered.remove(event.key)
        state, commands = engine.step(trial, state, event)
        yield state, event, commands


def open_commands(trial: Trial, plan: Plan, events: list[Event]) -> tuple[State, tuple[Command, ...]]:
    """Fold a history: the state that it leads to, and all commands that it asked for, in order (resume issues the rest)."""
    folded = tuple(steps(trial, plan, events))
    return folded[-1][0], tuple(command for _, _, commands in folded for command in commands)
