"""Convert values as a user writes them to the required type, or say what is wrong with them."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h)?\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?")
#: Problems that list the known names: ``… must be one of a, b (got x)``, ``… known: a, b (got x)``, ``'x' is not one of 'a', 'b'``.
_LISTINGS = (
    re.compile(r"(?:must be one of|known:|\bhas) (?P<known>[^()?]+) \(got '?(?P<got>[^'()]+)'?\)$"),
    re.compile(r"unknown \w+ (?P<got>[^;?]+); known: (?P<known>[^()?]+)$"),
    re.compile(r"'(?P<got>[^']+)' is not one of (?P<known>'[^?]+')\.?$"),
)
#: click's texts of a wrong number -> ours.
_NUMBERS = (
    (re.compile(r"'([^']*)' is not a valid integer(?: range)?\.?$"), r"must be a whole number (got \1)"),
    (re.compile(r"'([^']*)' is not a valid float(?: range)?\.?$"), r"must be a number (got \1)"),
    (re.compile(r"(\S+) is not in the range x>=(\d+)\.?$"), r"must be >= \2 (got \1)"),
    (re.compile(r"(\S+) is not in the range (\d+)<=x<=(\d+)\.?$"), r"must be from \2 to \3 (got \1)"),
)
#: The largest signed number of 64 bits.
MAX_BYTES = 2**63 - 1
#: Characters of a list that an error prints.
_LONGEST = 400
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def count(number: int, noun: str) -> str:
    """``4 steps``, ``1 step``."""
    many = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean x?`` for a close name, else the list of known names; of a long list those that are most like it."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    if len(text := ", ".join(names)) > _LONGEST:
        best = difflib.get_close_matches(name, names, n=5, cutoff=0.0)
        return f"{len(names):,} are known, such as: {', '.join(best)[:_LONGEST]}"
    return f"known: {text}" if names else "none is known"


def suggest(problem: str) -> str:
    """``problem`` with the nearest of the names that it lists, where it lists known names and the wrong one.

    click's texts of wrong numbers become those of ``convert``.
    """
    for pattern, text in _NUMBERS:
        problem = pattern.sub(text, problem)
    for pattern in _LISTINGS:
        if match := pattern.search(problem):
            names = [name.strip(" '\"") for name in match["known"].split(",")]
            close = difflib.get_close_matches(match["got"], names, n=1, cutoff=0.6)
            return f"{problem.rstrip('.')}; did you mean {close[0]}?" if close else problem
    return problem


def show(value: Any) -> str:
    """The text that quotes a wrong value in an error."""
    text = "nothing" if value is None else printable(_flow(value))
    return text if len(text) <= 60 else text[:57] + "..."


def printable(text: str) -> str:
    """``text`` on one line, without control characters for a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _flow(value: Any) -> str:
    """Write a value in YAML's flow style, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def seconds(value: Any) -> float:
    """``2``, ``2s``, ``500ms``, ``10m`` -> seconds. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("must be >= 0")
        if not value < sys.float_info.max:
            raise ValueError("must be a finite number")
        return float(value)
    match = _DURATION.fullmatch(str(value))
    if not match:
        raise ValueError("must be a time such as 2s, 500ms or 10m")
    return float(match[1]) * _SECONDS[match[2]]


def share(text: object) -> float:
    """``10%`` or ``0.1`` -> 0.1. Raises ValueError."""
    number = str(text).strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ValueError("must be a share such as 10% or 0.1")
    return value


def size(text: str) -> int:
    """``8g``, ``512MiB``, ``1.5 GB`` -> bytes; units are powers of 1024, as in container engines. Raises ValueError."""
    match = _SIZE.fullmatch(str(text))
    if not match:
        raise ValueError("must be a size such as 8g")
    number = float(match[1]) * 1024.0 ** " kmgt".index(match[2].lower() or " ")
    if number > MAX_BYTES:
        raise ValueError("must be less than 8 EiB")
    return round(number)


def whole(value: Any, minimum: int = 0) -> int:
    """A whole number of at least ``minimum``, from an int or its decimal text. Raises ValueError."""
    number = _int(value)
    if number < minimum:
        raise ValueError(f"must be >= {minimum}")
    return number


def convert(hint: Any, value: Any, *, duration: bool = False) -> Any:
    """``value`` (from YAML, or text from the command line) as the type ``hint``. Raises ValueError."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    if value is None or (type(None) in options and value == "none"):
        if type(None) in options:
            return None
        raise ValueError("needs a value")
    problem = ValueError("no type fits")
    for option in (option for option in options if option is not type(None)):
        try:
            return seconds(value) if duration and option is float else _convert_to(option, value)
        except ValueError as error:
            problem = error
    raise problem


def convert_fields(cls: type, what: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Converted arguments of a Params dataclass, and the problems as (field, text). ``what`` names a field in errors."""
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}
    arguments: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for name, value in values.items():
        key = _key(name, known)
        if key not in known:
            problems.append((name, f"unknown {what}; {nearest(key, known)}"))
            continue
        try:
            arguments[key] = convert(hints[key], value, duration=is_duration(key))
        except ValueError as error:
            problems.append((name, f"{error} (got {show(value)})"))
    names = {_key(name, known) for name in values}
    problems += [(name, "is missing") for name in _required(known.values()) if name not in names]
    return arguments, problems


def construct(cls: type, arguments: Mapping[str, Any]) -> tuple[Any, str]:
    """``cls`` of converted arguments, or None and the reason why it rejects them."""
    try:
        return cls(**arguments), ""
    except ValueError as error:
        return None, str(error)


def _key(name: str, known: Iterable[str]) -> str:
    """The field that ``name`` refers to: dashes are read as underscores, and ``for`` as ``for_s``."""
    key = name.replace("-", "_")
    return f"{key}_s" if key not in known and f"{key}_s" in known else key


def is_duration(name: str) -> bool:
    """Return whether a field of this name holds seconds, so that ``500ms`` is accepted."""
    return name == "seconds" or name.endswith("_s")


def has_required(cls: type, arguments: Mapping[str, Any]) -> bool:
    """Return whether ``arguments`` has every field of the dataclass ``cls`` that has no default."""
    return set(_required(dataclasses.fields(cls))) <= set(arguments)


def _required(known: Iterable[dataclasses.Field[Any]]) -> list[str]:
    missing = dataclasses.MISSING
    return [field.name for field in known if field.default is missing and field.default_factory is missing]


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _convert_to(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return _choice(typing.get_args(hint), value)
    if origin in (tuple, list):
        return _items(origin, typing.get_args(hint), value)
    if hint is bool:
        return _bool(value)
    if hint is int:
        return _int(value)
    if hint is float:
        return _float(value)
    if hint is str:
        return _text(value)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(value)
    return value


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if value == choice or str(value) == str(choice):
            return choice
    raise ValueError(f"must be one of {', '.join(map(str, choices))}")


def _items(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        parts = [parts]
    kind = arguments[0] if arguments else str
    items = [_convert_to(kind, part.strip() if isinstance(part, str) else part) for part in parts]
    return tuple(items) if origin is tuple else items


def _bool(value: Any) -> bool:
    text = str(value).lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("must be true or false")


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("must be a whole number")
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a whole number") from None


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        raise ValueError("must be text")
    return str(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping")
    return value
