"""The cache of twins: uninterrupted runs, by the key of what determines their result."""

from __future__ import annotations

import json
from pathlib import Path

from ..model import codec
from ..model.run import Twin
from . import paths


def get(state: Path, key: str) -> Twin | None:
    """None when there is none, or a damaged one: a twin can always be run again."""
    try:
        twin = codec.build(Twin, json.loads(_file(state, key).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return twin if twin.key == key else None


def put(state: Path, twin: Twin) -> None:
    paths.write_json(_file(state, twin.key), codec.plain(twin))


def _file(state: Path, key: str) -> Path:
    return state / "twins" / f"{key}.json"
