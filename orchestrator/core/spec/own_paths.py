"""Paths in a script's arguments that each run has for itself: ``{out}``, and in reference runs what ``--map`` names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

OUT = "{out}"
#: The parameters whose words are looked through.
_WORDS = ("args", "exec_")


def of_run(params: Mapping[str, Any], out: str, run: str, *, is_reference: bool) -> dict[str, str]:
    """Text in arguments -> what stands there in this run. ``out``: the directory of its outputs."""
    pairs = (text.partition("=") for text in params.get("map") or ())
    mapped = {path: f"{directory.rstrip('/')}/{run}" for path, _, directory in pairs} if is_reference else {}
    is_used = any(OUT in word for name in _WORDS for word in params.get(name) or ())
    return mapped | ({OUT: out} if is_used else {})


def applied(params: Mapping[str, Any], paths: Mapping[str, str]) -> Mapping[str, Any]:
    """The parameters with the run's own paths. A path is replaced with what is below it, also behind ``--out=``."""
    return {**params, **{name: _replaced(params[name], paths) for name in _WORDS if paths and params.get(name)}}


def _replaced(words: Sequence[str], paths: Mapping[str, str]) -> tuple[str, ...]:
    for text, path in paths.items():
        pattern = re.escape(text) if text == OUT else rf"(?<![\w/.~-]){re.escape(text.rstrip('/'))}(?![\w.-])"
        words = [re.sub(pattern, lambda _, path=path: path, word) for word in words]  # type: ignore[misc]
    return tuple(words)
