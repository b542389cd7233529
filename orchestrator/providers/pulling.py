"""Files of a host that are not followed, fetched piece by piece when somebody wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..model.provider import Fetched
from .link import Answer

Ask = Callable[[Mapping[str, Any], bytes, float], Answer]


def pull(ask: Ask, path: str, to: Path, limit: int, deadline_s: float) -> Fetched:
    """A file or a tree, small files first, ``limit`` bytes at most in all. Raises OSError where there is no space here."""
    until = time.monotonic() + deadline_s

    def asked(**header: Any) -> Answer:
        return ask(header, b"", max(0.01, until - time.monotonic()))

    size, capped = 0, False
    try:
        listed = asked(do="list", path=path)[0]
    except (OSError, ValueError, RuntimeError) as error:
        return Fetched(path=path, size=0, reason=str(error))
    if listed is None:
        return Fetched(path=path, size=0, reason="not there")
    for name, length in sorted(listed, key=lambda entry: (entry[1], entry[0])):
        room = max(0, min(limit - size, length))
        capped = capped or room < length
        got, reason = _file(asked, path, name, to, room)
        size += got
        if reason:
            return Fetched(path=path, size=size, capped=capped, reason=reason)
    return Fetched(path=path, size=size, capped=capped)


def _file(asked: Callable[..., Answer], path: str, name: str, to: Path, room: int) -> tuple[int, str]:
    """(bytes that came, why no more did)."""
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return 0, f"{name!r} leaves its directory"
    target = to / name if name else to
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        while (size := out.tell()) < room:
            try:
                _, data = asked(do="read", path=f"{path}/{name}" if name else path, at=size, room=room - size)
            except (OSError, ValueError, RuntimeError) as error:
                return size, str(error)
            if not data:
                break
            out.write(data)
        return out.tell(), ""
