"""An answer that is given again, because its command came again: one that the history has already is a note in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.event import REPEATED, Event
from ...model.events import CommandRepeated


def noted(event: Event, before: Iterable[Event]) -> Event:
    """The event as it is written down. ``before``: the history so far.

    Only what its writer marks as given again, and what says the same, is no second answer: a deed done twice stays one.
    """
    if event.type not in ("ok", "fail") or not event.value.get(REPEATED):
        return event
    if not any(_same(event, one) for one in before):
        return event
    repeated = CommandRepeated(f=event.f, key=event.key)
    return replace(event, type="note", f=repeated.NAME, key=None, value=codec.plain(repeated))


def _same(event: Event, one: Event) -> bool:
    about = (event.type, event.f, event.key, event.node)
    return (one.type, one.f, one.key, one.node) == about and _said(one) == _said(event)


def _said(event: Event) -> dict[str, Any]:
    return {name: item for name, item in event.value.items() if name != REPEATED}
