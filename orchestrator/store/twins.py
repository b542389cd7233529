"""The cache of twins by their key, with checksums."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.verdict import twin as twins
from ..model import codec
from ..model.run import Twin
from . import paths


class DamagedTwinError(Exception):
    """The cached file of a twin cannot be used; the message names the file and the reason."""


def get(state: Path, key: str, ranks: int) -> Twin | None:
    """The twin of ``ranks`` ranks with this key; None if there is none. Raises DamagedTwinError."""
    file = _file(state, key)
    try:
        twin = _read(file.read_bytes(), key, ranks)
        with suppress(OSError):
            os.utime(file)  # it is in use: its age counts from now
        return twin
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedTwinError(f"{file}: {error}") from None


def put(state: Path, twin: Twin) -> None:
    content = codec.plain(twin)
    paths.write_json(_file(state, twin.key), {"sha256": _sum(content), "twin": content})


def _read(data: bytes, key: str, ranks: int) -> Twin:
    """Raises ValueError with the reason, or another error for damaged data."""
    document = json.loads(data)
    content = document.get("twin")
    if content is None or "sha256" not in document:
        raise ValueError("it has no checksum")
    if document["sha256"] != _sum(content):
        raise ValueError("its content does not match its checksum")
    twin = codec.build(Twin, content)
    reason = twins.incomplete(twin, ranks) if twin.key == key else f"it is the twin of key {twin.key}"
    if reason:
        raise ValueError(reason)
    return twin


def _sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file(state: Path, key: str) -> Path:
    return state / "twins" / f"{key}.json"
