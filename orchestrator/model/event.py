"""Events, commands and the history: what happened, what is ordered, and in which sequence.

*Commands* appear as ``invoke`` when the orchestrator issues them and close with one ``ok``, ``fail`` or ``info``
(indeterminate) that carries the same ``key``. *Observations* are ``note``. ``model/events/`` has a class for each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from . import codec
from .frozen import dataclass, field
from .payload import REGISTRY, EventType, Payload

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P_co = TypeVar("P_co", bound="Payload | None", default=Any, covariant=True)
    Q = TypeVar("Q", bound=Payload)
    S = TypeVar("S", bound=Payload)
else:
    from typing import TypeVar

    P_co = TypeVar("P_co", covariant=True)
    Q = TypeVar("Q")
    S = TypeVar("S")

#: In the value of an answer that was given before, to a command that came again.
REPEATED = "repeated"


_UNREAD = object()
_ANY: tuple[EventType, ...] = ("invoke", "ok", "fail", "info", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time at which the writer wrote: its boot id, CLOCK_MONOTONIC in seconds, and wall-clock seconds since 1970."""

    boot: str
    mono: float
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The writer of an event. ``(node, incarnation, writer, n)`` is its identity; the journal drops repeats by it."""

    writer: str
    n: int
    node: str | None = None
    incarnation: str | None = None

    @property
    def identity(self) -> tuple[str | None, str | None, str, int]:
        return (self.node, self.incarnation, self.writer, self.n)


class _Typed(Generic[P_co]):
    """Reads the payload from ``value``, once. ``value`` itself stays as it was read: signatures and digests are over it."""

    __slots__ = ("_data",)

    if TYPE_CHECKING:
        f: str
        value: Mapping[str, Any]
        _data: P_co

    def _type(self) -> EventType:
        raise NotImplementedError

    @property
    def kind(self) -> type[Payload] | None:
        """The class of the payload; None for an event of a workload's own."""
        return _registry().get((self.f, self._type()))

    @property
    def command(self) -> type[Payload] | None:
        """The class of the command that this orders or closes; None for an observation."""
        return None if self._type() == "note" else _registry().get((self.f, "invoke"))

    @property
    def subject(self) -> type[Payload] | None:
        """The class of the command that this orders or closes, else of the observation."""
        return self.command or self.kind

    @property
    def data(self) -> P_co:
        """The payload; None for an event of a workload's own. Raises TypeError where a required key is missing."""
        data: Any = getattr(self, "_data", _UNREAD)
        if data is _UNREAD:
            kind = self.kind
            data = kind.read(self.value) if kind else None
            object.__setattr__(self, "_data", data)
        return cast(P_co, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(_Typed[P_co]):
    """One line of a history. ``seq`` and ``t`` (seconds since the run began, controller's clock) are set by the journal."""

    type: EventType
    f: str
    at: Clock
    source: Source
    seq: int = 0
    t: float = 0.0
    key: str | None = None
    node: str | None = None
    epoch: int | None = None
    value: Mapping[str, Any] = field(default_factory=dict)

    def _type(self) -> EventType:
        return self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(_Typed[P_co]):
    """Something to be done, once. ``key`` makes it idempotent; the incarnation and epoch fence it."""

    f: str
    key: str
    node: str | None = None
    incarnation: str | None = None
    epoch: int | None = None
    deadline_s: float = 10.0
    value: Mapping[str, Any] = field(default_factory=dict)

    def _type(self) -> EventType:
        return "invoke"


def event(
    payload: Q,
    *,
    at: Clock,
    source: Source,
    type: EventType | None = None,
    f: str = "",
    key: str | None = None,
    node: str | None = None,
    epoch: int | None = None,
) -> Event[Q]:
    """The event with this payload. ``type`` and ``f`` where its class does not say them: it has several, or is CommandFailed."""
    return Event(
        type=type or payload.TYPES[0], f=payload.NAME or f, at=at, source=source, key=key, node=node, epoch=epoch,
        value=codec.plain(payload),
    )  # fmt: skip


def command(
    payload: Q,
    key: str,
    *,
    node: str | None = None,
    incarnation: str | None = None,
    epoch: int | None = None,
    deadline_s: float = 10.0,
) -> Command[Q]:
    return Command(
        f=payload.NAME, key=key, node=node, incarnation=incarnation, epoch=epoch, deadline_s=deadline_s,
        value=codec.plain(payload),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class History:
    """A closed or growing sequence of events, in journal order."""

    events: tuple[Event, ...] = ()

    @overload
    def of(self, kind: type[Q], /) -> tuple[Event[Q], ...]: ...
    @overload
    def of(self, kind: type[Q], other: type[S], /) -> tuple[Event[Q | S], ...]: ...
    @overload
    def of(self, *kinds: type[Payload] | str) -> tuple[Event, ...]: ...
    def of(self, *kinds: type[Payload] | str) -> tuple[Event, ...]:
        """The events with a payload of one of ``kinds``, in order."""
        return tuple(_among(self.events, kinds))

    def with_subject(self, *subjects: type[Payload]) -> tuple[Event, ...]:
        """Observations of these classes, commands of these classes and their outcomes, in order."""
        names = [subject.NAME for subject in subjects]
        return tuple(event for event in self.events if event.f in names and event.subject in subjects)

    @overload
    def first(self, kind: type[Q]) -> Event[Q] | None: ...
    @overload
    def first(self, kind: str) -> Event | None: ...
    def first(self, kind: type[Payload] | str) -> Event | None:
        return next(_among(self.events, (kind,)), None)

    @overload
    def last(self, kind: type[Q]) -> Event[Q] | None: ...
    @overload
    def last(self, kind: str) -> Event | None: ...
    def last(self, kind: type[Payload] | str) -> Event | None:
        return next(_among(reversed(self.events), (kind,)), None)


def _among(events: Iterable[Event], kinds: Iterable[type[Payload] | str]) -> Iterator[Event]:
    """Events by the class of their payload; by name until every reader uses classes."""
    types = {kind: _ANY if isinstance(kind, str) else kind.TYPES for kind in kinds}
    wanted = {kind if isinstance(kind, str) else kind.NAME: types[kind] for kind in types}
    return (event for event in events if event.f in wanted and event.type in wanted[event.f])


@functools.cache
def _registry() -> Mapping[tuple[str, str], type[Payload]]:
    """Filled by the import of the classes, which the first reader needs and the start of a process does not."""
    from . import events as _  # noqa: F401

    return REGISTRY
