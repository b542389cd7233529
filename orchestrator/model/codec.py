"""Convert between dataclasses and JSON values by their type hints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")

#: Key in the metadata of a field: None is written as null.
NULL = "null"
_SCALARS = frozenset({str, int, bool, type(None)})
_AS_THEY_ARE: tuple[Any, ...] = (str, int, bool, Any)


def plain(value: Any) -> Any:
    """A JSON-able copy of a dataclass, mapping, sequence or scalar. Fields that are None are left out, unless marked NULL.

    JSON has no numbers that are not finite: those become their ``float.hex``, ``nan``, ``inf`` or ``-inf``.
    """
    kind: type = type(value)
    if kind in _SCALARS or (kind is float and math.isfinite(value)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: item if type(item) in _SCALARS else plain(item)
            for name, null in _names(kind)
            if (item := getattr(value, name)) is not None or null
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return value.hex()
    return str(value) if isinstance(value, Path) else value


def digest(value: Any) -> str:
    """SHA-256 of a value as JSON, its names in order."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def build(cls: type[T], data: Any) -> T:
    """The dataclass ``cls`` from the output of ``plain``.

    Raises KeyError, TypeError or ValueError for data of another shape; callers at the border turn these into user errors.
    """
    return cast(T, _build(cls, data))


@functools.cache
def _names(cls: type) -> tuple[tuple[str, bool], ...]:
    return tuple((field.name, bool(field.metadata.get(NULL))) for field in dataclasses.fields(cls))


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass. Evaluating them takes a millisecond, so a process does it before it forks."""
    return typing.get_type_hints(cls)


def _build(hint: Any, data: Any) -> Any:
    if hint in _AS_THEY_ARE:
        return data
    if hint is Path:
        return Path(data)
    if dataclasses.is_dataclass(hint):
        types_of = hints(cast(type, hint))
        return cast(type, hint)(**{key: _build(types_of[key], item) for key, item in data.items()})
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union(arguments, data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_build(arguments[0], item) for item in data)
        return tuple(_build(part_type, item) for part_type, item in zip(arguments, data, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _build(arguments[1], item) for key, item in data.items()}
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return data


def _union(arguments: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    chosen = [option for option in arguments if option is not type(None)]
    nested = [option for option in chosen if dataclasses.is_dataclass(option) or typing.get_origin(option)]
    if Path in chosen:
        return Path(data)
    return _build(nested[0], data) if nested and isinstance(data, dict | list | tuple) else data
