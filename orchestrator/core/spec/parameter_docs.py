"""Parameter documentation: the meaning of a plugin's parameters, from lines ``name, name   text`` in its Params."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import fields
from typing import Any

_LINE = re.compile(r" {4}(\w+(?:, \w+)*) {2,}(\S.*)")
_MORE = re.compile(r" {8,}(\S.*)")


def read_meanings(cls: type) -> dict[str, str]:
    """Name of each documented field -> its meaning; a class overrides its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        meanings |= _parse_docstring(base.__dict__.get("__doc__") or "")
    return {field.name: meanings[field.name] for field in fields(cls) if field.name in meanings}


def _parse_docstring(doc: str) -> dict[str, str]:
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in doc.splitlines():
        if match := _LINE.fullmatch(line):
            names = match[1].split(", ")
            meanings |= dict.fromkeys(names, match[2].rstrip())
        elif names and (match := _MORE.fullmatch(line)):
            meanings |= {name: f"{meanings[name]} {match[1].rstrip()}" for name in names}
        else:
            names = []
    return meanings


def placeholders(cls: type) -> dict[str, str]:
    """Name of each field -> the placeholder of its value in help texts: ``N``, ``X``, ``true|false``, ``A,B,…`` or ``TEXT``."""
    hints = typing.get_type_hints(cls)
    return {field.name: _placeholder(hints[field.name]) for field in fields(cls)}


def _placeholder(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        return "A,B,…"
    return {bool: "true|false", int: "N", float: "X"}.get(hint, "TEXT")


def format_value(value: Any) -> str:
    """A value as the command line accepts it; empty for no value."""
    if value is None or value in ("", (), []):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        has_mapping = any(isinstance(item, dict) for item in value)
        return f"{len(value)} items" if has_mapping else ",".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
