"""Checks that the decisions in a history are those that the engine takes from its events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from ... import views
from ...model import codec, vaulted
from ...model.event import Command, Event, History
from ...model.events import Note, RunEnd
from ...model.plan import Plan
from ...model.run import Run
from ..engine import fold


def contradictions(run: Run) -> Iterator[views.Finding]:
    """The first decision or command of the history that does not follow from the events before it. Nothing where none is."""
    try:
        yield from _contradictions(run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield views.finding(f"the history cannot be replayed: {type(error).__name__}: {error}")


def _contradictions(run: Run) -> Iterator[views.Finding]:
    plan = codec.build(Plan, run.extras["plan.json"])
    recorded = [event for event in run.history.events if _is_decision(event)]
    for command, event in zip_longest(_commands(run, plan), recorded):
        difference = _difference(command, event, ended=_has_ended(run.history))
        if difference:
            yield views.finding(difference, event)
            return


def _is_decision(event: Event) -> bool:
    """Commands, and the engine's own notes, which have a key."""
    by_engine = event.type == "invoke" or (event.type == "note" and event.key is not None)
    return by_engine and event.source.writer == "ctl"


def _has_ended(history: History) -> bool:
    """Return whether the engine ended the run itself; one that was interrupted or given up leaves commands that were never sent."""
    end = history.last(RunEnd)
    return end is not None and end.key is not None


def _commands(run: Run, plan: Plan) -> Iterator[tuple[Command, int]]:
    """Yield what the engine orders, each with the number of the event from which it follows."""
    for _, event, commands in fold.steps(run.trial, plan, run.history.events):
        for command in commands:
            yield command, event.seq if event else 0


def _difference(due: tuple[Command, int] | None, event: Event | None, *, ended: bool) -> str:
    if due is None:
        return f"{event.f} {event.key} does not follow from the events before it" if event else ""
    command, cause = due
    is_note = isinstance(command.data, Note)
    name = command.data.f if is_note else command.f
    if event is None:
        return f"{name} {command.key} follows from event {cause}, but the history lacks it" if ended else ""
    if (name, command.key) != (event.f, event.key):
        return f"{event.f} {event.key} stands where {name} {command.key} follows from event {cause}"
    if event.seq <= cause:
        return f"{name} {command.key} stands before event {cause}, from which it follows"
    if (command.node, command.epoch) != (event.node, event.epoch) or is_note != (event.type == "note"):
        return f"{name} {command.key} is recorded for {event.node}, epoch {event.epoch}"
    fields = _unequal(_content(command), _as_json(event.value))
    return f"{name} {command.key} is recorded with another {', '.join(fields)}" if fields else ""


def _content(command: Command) -> Any:
    if isinstance(command.data, Note):
        return _as_json(command.data.value)
    return _as_json({**command.value, "deadline_s": command.deadline_s})


def _unequal(due: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    names = sorted(
        {*due, *recorded} - ({"deadline_s"} - recorded.keys())
    )  # an injection that was forgone has no deadline
    return [name for name in names if not vaulted.same(due.get(name), recorded.get(name))]


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(codec.plain(value)))
