"""Duplicate responses: the repeated response to a repeated command is recorded as a note."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.event import REPEATED, Event
from ...model.events import CommandRepeated


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
