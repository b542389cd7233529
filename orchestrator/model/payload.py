"""Typed payloads: frozen dataclasses that are read from the mapping of an event or a command, and written as one.

``@payload`` registers a class under the names that it stands for; ``@record`` is for a part of a payload. Both make a frozen,
keyword-only dataclass with slots.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from . import codec
from .frozen import dataclass

if TYPE_CHECKING:
    from typing import Self, dataclass_transform
else:  # hosts may have Python 3.10

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda function: function


EventType = Literal["invoke", "ok", "fail", "info", "note"]
R = TypeVar("R", bound="Record")
Q = TypeVar("Q", bound="Payload")

#: (name of the event, its type) -> class of its payload; filled by ``@payload``.
REGISTRY: dict[tuple[str, str], type[Payload]] = {}
_MISSING: Any = dataclasses.MISSING


class Record:
    """A part of a payload. A key that is absent from the mapping, or null, reads as None: it is not known."""

    __slots__ = ()

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """The payload of a mapping; keys that the class does not have are ignored. Raises TypeError for a missing key."""
        new = object.__new__(cls)
        readers: Any = _readers
        for name, default, convert in readers(cls):
            item = value.get(name, default)
            if item is _MISSING:
                raise TypeError(f"{cls.__name__}: {name} is missing")
            object.__setattr__(new, name, convert(item) if convert is not None and item is not None else item)
        return new


class Payload(Record):
    """The content of an event or a command. ``NAME``: the ``f`` of its events; ``TYPES``: their types; ``WRITER``: who writes them."""

    __slots__ = ()

    NAME: ClassVar[str] = ""
    TYPES: ClassVar[tuple[EventType, ...]] = ()
    WRITER: ClassVar[str] = ""


def null() -> Any:
    """An optional field that is written as null where it is not known; other optional fields are left out."""
    return dataclasses.field(default=None, metadata={codec.NULL: True})


def nullable() -> Any:
    """A required field that is written as null where its value is not known."""
    return dataclasses.field(metadata={codec.NULL: True})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, null, nullable))
def record(cls: type[R]) -> type[R]:
    """The frozen dataclass of a part of a payload."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, null, nullable))
def payload(name: str, *types: EventType, writer: str = "") -> Callable[[type[Q]], type[Q]]:
    """The frozen dataclass that the events ``name`` of these types (without any: notes) carry."""

    def decorate(cls: type[Q]) -> type[Q]:
        made = record(cls)
        made.NAME, made.TYPES, made.WRITER = name, types or ("note",), writer
        REGISTRY.update({(name, class_type): made for class_type in made.TYPES})
        return made

    return decorate


def _defaults(record: Any) -> Mapping[str, Any]:
    """The fields of a record or its class, with their defaults."""
    return _defaults_of(record if isinstance(record, type) else type(record))


@functools.cache
def _defaults_of(cls: Any) -> Mapping[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}


@functools.cache
def _readers(cls: Any) -> tuple[tuple[str, Any, Callable[[Any], Any] | None], ...]:
    return tuple((name, default, _reader(hints(cls)[name])) for name, default in _defaults(cls).items())


@functools.cache
def hints(cls: Any) -> Mapping[str, Any]:
    """The types of the fields of a record, by their names, with the ranges of ``events/field_types.py``."""
    annotations: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(cls)}
    return {name: _hint(annotation, cls.__module__) for name, annotation in annotations.items()}


@functools.cache
def _hint(annotation: str, module: str) -> Any:
    """The type that an annotation means in a module. Evaluated once: most classes of a module have the same few."""
    holder = type("_", (), {"__annotations__": {"field": annotation}, "__module__": module})
    return typing.get_type_hints(holder, include_extras=True)["field"]


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of this type from JSON; None where the value is taken as it is."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint.read if issubclass(hint, Record) else functools.partial(_read, hint)
    if origin in (types.UnionType, typing.Union):
        return next((reader for argument in arguments if (reader := _reader(argument))), None)
    if origin is tuple:
        element = _reader(arguments[0])
        return (lambda items: tuple(map(element, items))) if element else tuple
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        inner = _reader(arguments[1])
        return (lambda items: {key: inner(item) for key, item in items.items()}) if inner else None
    return None


def _read(cls: type, value: Mapping[str, Any]) -> Any:
    """A dataclass of the model, from a mapping that may have further keys."""
    hints = _model_hints(cls)
    return cls(**{name: hints[name](item) for name, item in value.items() if name in hints})


@functools.cache
def _model_hints(cls: type) -> dict[str, Callable[[Any], Any]]:
    def same(item: Any) -> Any:
        return item

    return {name: _reader(hint) or same for name, hint in typing.get_type_hints(cls).items()}
