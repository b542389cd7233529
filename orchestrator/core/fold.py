"""Folding a history: what a new orchestrator knows when it takes a run over."""

from __future__ import annotations

from ..model.event import Command, Event
from ..model.plan import Plan
from ..model.trial import Trial
from . import engine
from .state import State


def open_commands(trial: Trial, plan: Plan, events: list[Event]) -> tuple[State, tuple[Command, ...]]:
    """Fold a history: the state that it leads to, and all commands that it asked for, in order (resume issues the rest).

    As in the loop that wrote it, only the first answer to a command counts; those that came after it are in there as well.
    """
    state, commands = engine.begin(trial, plan)
    unanswered: set[str | None] = set()
    for event in events:
        if event.type == "invoke":
            unanswered.add(event.key)
        elif event.type != "note":
            if event.key not in unanswered:
                continue
            unanswered.remove(event.key)
        state, more = engine.step(trial, state, event)
        commands += more
    return state, commands
