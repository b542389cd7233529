"""Holds what keeper and agent have in common: each takes commands from its inbox, rejects or performs them, and keeps their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ...model import codec
from ...model.events.commands import CommandFailed
from ...model.events.run_events import CommandRefused
from ...model.payload import Payload
from . import inbox
from .event_log import EventLog
from .inbox import Inbox, Item, Respond, required

#: The run of commands that belong to the bed and to no run.
NO_RUN = "bed"
#: Which node, incarnation and run an event is about.
Origin = dict[str, str | None]


class Performer(ABC):
    """Performs the commands of its inbox. A subclass says by ``_handlers`` which, and by ``_rejection`` when it does not."""

    _inbox: Inbox

    @abstractmethod
    def _handlers(self) -> Mapping[type[Payload], Callable[[Item, Any], None]]: ...

    @abstractmethod
    def _rejection(self, item: Item) -> str:
        """Return why a command is rejected; empty if it is performed."""

    @abstractmethod
    def _log_of(self, run: str) -> EventLog: ...

    @abstractmethod
    def _origin(self, item: Item) -> Origin:
        """Return what the events about a command say of where they come from."""

    @abstractmethod
    def _incarnation_of(self, item: Item) -> str | None:
        """The incarnation to which the outcome of a command belongs."""

    def _take_commands(self) -> None:
        for item in self._inbox.take():
            self._handle(item)

    def _handle(self, item: Item) -> None:
        if item.outcome is not None:
            self._append_outcome(item, inbox.repeated_outcome(item.outcome))
            self._inbox.finish(item)
        elif problem := item.problem or self._rejection(item):
            self._reject(item, problem)
        else:
            self._fail_on_error(item, lambda: self._perform(item))

    def _perform(self, item: Item) -> None:
        self._handlers()[required(item.command.kind, "f")](item, item.command.data)

    def _fail_on_error(self, item: Item, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001
            self._respond(item, "fail", CommandFailed(reason=f"{type(error).__name__}: {error}"))

    def _responder(self, item: Item) -> Respond:
        return lambda kind, payload: self._respond(item, kind, payload)

    def _respond(self, item: Item, kind: str, payload: Payload) -> None:
        self._finish(item, kind, payload, self._incarnation_of(item))

    def _finish(self, item: Item, kind: str, payload: Payload, incarnation: str | None) -> None:
        """Keep the outcome before it is reported, so that a repeated command can report it after a crash."""
        command, value = item.command, codec.plain(payload)
        outcome = {"type": kind, "value": value, "incarnation": incarnation, "f": command.f, "key": command.key}
        self._inbox.finish(item, outcome)
        self._append_outcome(item, outcome)

    def _append_outcome(self, item: Item, outcome: Mapping[str, Any]) -> None:
        command = item.command
        about = {"incarnation": outcome.get("incarnation"), **self._origin(item)}
        key, epoch = command.key, command.epoch
        self._log_of(item.run).append(outcome["type"], command.f, outcome["value"], key=key, epoch=epoch, **about)

    def _reject(self, item: Item, reason: str) -> None:
        """Write a note of the rejection, and an outcome if the file holds a command."""
        command = item.command
        refused = CommandRefused(key=command.key or item.name, reason=reason)
        self._log_of(item.run or NO_RUN).note(refused, epoch=command.epoch, **self._origin(item))
        if command.key:
            self._finish(item, "fail", CommandFailed(reason=reason), self._origin(item).get("incarnation"))
        else:
            self._inbox.finish(item)
