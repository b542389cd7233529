"""Values from a vault: hide or mask them in output and files, and reveal them for use."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

#: Shorter values are not replaced inside other text: they would match by chance.
SHORTEST = 6
#: The placeholder of a value: its number among the values of the bed, from 1.
PLACEHOLDER = re.compile(r"<vault:(\d+)>")
HIDDEN = "***"


def hide(value: Any, secrets: Sequence[str]) -> Any:
    """A copy of a JSON value, or of a text, with ``***`` in place of secrets."""
    return _replaced(value, tuple(secrets), lambda number: HIDDEN) if secrets else value


def mask(value: Any, secrets: Sequence[str]) -> Any:
    """A copy with placeholders, from which ``reveal`` restores the value."""
    return _replaced(value, tuple(secrets), lambda number: f"<vault:{number}>") if secrets else value


def reveal(value: Any, secrets: Sequence[str]) -> Any:
    """The original value of ``mask``. A placeholder with an unknown secret stays."""

    def original(match: re.Match[str]) -> str:
        number = int(match[1])
        return secrets[number - 1] if 0 < number <= len(secrets) else match[0]

    return _mapped(value, lambda text: PLACEHOLDER.sub(original, text))


def is_masked(value: Any) -> bool:
    return any(PLACEHOLDER.search(text) for text in _texts(value))


def names(environment: Mapping[str, str], secrets: Sequence[str]) -> tuple[str, ...]:
    """The variables of an environment whose values contain a value from a vault."""
    whole = frozenset(secrets)
    return tuple(name for name, text in environment.items() if text in whole or hide(text, secrets) != text)


def _replaced(value: Any, secrets: tuple[str, ...], placeholder: Callable[[int], str]) -> Any:
    pattern, numbers = _pattern(secrets)
    return _mapped(value, lambda text: pattern.sub(lambda match: placeholder(numbers[match[0]]), text))


@functools.lru_cache(maxsize=8)
def _pattern(secrets: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, int]]:
    """Longest first, so that a secret that begins with another secret is replaced completely."""
    numbers = {text: number for number, text in enumerate(secrets, start=1) if len(text) >= SHORTEST}
    longest_first = sorted(numbers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"), numbers


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    parts = (
        [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    for part in parts:
        yield from _texts(part)


def same(item: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; ``***`` matches any text."""
    if isinstance(item, str) and isinstance(other, str):
        return item == other or _fits(item, other) or _fits(other, item)
    if isinstance(item, Mapping) and isinstance(other, Mapping):
        return item.keys() == other.keys() and all(same(value, other[key]) for key, value in item.items())
    if isinstance(item, list) and isinstance(other, list):
        return len(item) == len(other) and all(same(*pair) for pair in zip(item, other, strict=True))
    return type(item) is type(other) and bool(item == other)


def _fits(hidden: str, text: str) -> bool:
    parts = hidden.split(HIDDEN)
    return len(parts) > 1 and bool(re.fullmatch(".*".join(map(re.escape, parts)), text, re.DOTALL))
