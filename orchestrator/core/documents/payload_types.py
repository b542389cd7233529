"""The types by which msgspec checks the payloads of events: made from the classes in ``model/events``, with their ranges.

A key that has a default may be absent or null. Keys that a class does not have are allowed: a later version may add some.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, defstruct

from ...model import events
from ...model.events import units
from ...model.payload import REGISTRY, hints

assert events.DETECTORS, "the import fills REGISTRY"


def schemas() -> Mapping[tuple[str, str], Any]:
    """(name of an event, its type) -> type of its value."""
    return {key: schema(*key) for key in REGISTRY if key != ("note", "invoke")}


def schema(name: str, kind: str) -> Any:
    """The type of the value of an event, made when the first event of that type is read; None: any value is right."""
    known = REGISTRY.get((name, kind))
    checked: Any = _checked
    return checked(known) if known and (name, kind) != ("note", "invoke") else None


@functools.cache
def _checked(cls: Any) -> Any:
    """A structure with the fields of a dataclass; msgspec converts to structures faster than to anything else."""
    annotations = hints(cls)
    fields: Any = [(field.name, _hint(annotations[field.name]), *_default(field)) for field in dataclasses.fields(cls)]
    return defstruct(cls.__name__, fields, kw_only=True, gc=False)


def _default(field: dataclasses.Field[Any]) -> tuple[()] | tuple[None]:
    missing = dataclasses.MISSING
    return () if field.default is missing and field.default_factory is missing else (None,)


def _hint(hint: Any) -> Any:
    """The same type with msgspec's ranges, and with structures for dataclasses."""
    origin: Any = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return type(arguments[0])  # another version of ccbed may know further values
    if origin is Annotated:
        return Annotated[_hint(arguments[0]), *map(_meta, hint.__metadata__)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _checked(hint)
    if origin in (types.UnionType, typing.Union):
        return functools.reduce(operator.or_, map(_hint, arguments))
    if origin is None:
        return hint
    inner = tuple(argument if argument is Ellipsis else _hint(argument) for argument in arguments)
    return origin[inner]


def _meta(limit: Any) -> Any:
    if not isinstance(limit, units.Range):
        return limit
    limits: dict[str, Any] = {name: value for name, value in dataclasses.asdict(limit).items() if value is not None}
    return Meta(**limits)
