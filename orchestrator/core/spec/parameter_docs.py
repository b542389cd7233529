"""What the parameters of a plugin mean, as the docstrings of its Params say: ``name, name   text``, a line or more for each."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import fields
from typing import Any

_LINE = re.compile(r" {4}(\w+(?:, \w+)*) {2,}(\S.*)")
_MORE = re.compile(r" {8,}(\S.*)")


def of(cls: type) -> dict[str, str]:
    """Name of each field that is explained -> its meaning; what a class says wins over its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _told(base.__dict__.get("__doc__") or "")
    return {field.name: found[field.name] for field in fields(cls) if field.name in found}


def _told(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.splitlines():
        if match := _LINE.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2].rstrip())
        elif names and (match := _MORE.fullmatch(line)):
            found |= {name: f"{found[name]} {match[1].rstrip()}" for name in names}
        else:
            names = []
    return found


def kinds(cls: type) -> dict[str, str]:
    """Name of each field -> how a value of it is written: ``N``, ``X``, ``true|false``, ``A,B,…`` or ``TEXT``."""
    hints = typing.get_type_hints(cls)
    return {field.name: _kind(hints[field.name]) for field in fields(cls)}


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        return "A,B,…"
    return {bool: "true|false", int: "N", float: "X"}.get(hint, "TEXT")


def shown(value: Any) -> str:
    """A value as the command line takes it; empty for none."""
    if value is None or value in ("", (), []):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value)) if not any(isinstance(one, dict) for one in value) else f"{len(value)} items"
    return f"{value:g}" if isinstance(value, float) else str(value)
