"""Files of a host that are not followed, fetched piece by piece when somebody wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...model.provider import Fetched
from .. import files
from .connection_errors import HostError
from .requests import Answer

Ask = Callable[[Mapping[str, Any], bytes, float], Answer]


def pull(ask: Ask, path: str, to: Path, limit: int, deadline_s: float) -> Fetched:
    """A file or a tree, small files first, ``limit`` bytes at most in all. Raises OSError where there is no space here."""
    until = time.monotonic() + deadline_s

    def asked(**header: Any) -> Answer:
        return ask(header, b"", max(0.01, until - time.monotonic()))

    size, capped = 0, False
    wrong: list[str] = []
    try:
        listed = asked(do="list", path=path)[0]
    except (OSError, ValueError, RuntimeError) as error:
        return Fetched(path=path, size=0, reason=str(error))
    if listed is None:
        return Fetched(path=path, size=0, reason="not there")
    for name, length, closed in sorted(listed, key=lambda entry: (entry[1], entry[0])):
        room = max(0, min(limit - size, length))
        capped = capped or room < length
        try:
            got, reason = (0, f"{name}: {closed}") if closed else _file(asked, path, name, to, room)
        except HostError as error:
            return Fetched(path=path, size=size, capped=capped, reason=str(error))
        size += got
        wrong += [reason] if reason else []
    return Fetched(path=path, size=size, capped=capped, reason=files.told(wrong))


def _file(request: Callable[..., Answer], path: str, name: str, to: Path, room: int) -> tuple[int, str]:
    """(bytes that came, why no more did). Raises HostError where the host does not answer any more."""
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return 0, f"{name!r} leaves its directory"
    target = to / name if name else to
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        while (size := out.tell()) < room:
            try:
                _, data = request(do="read", path=f"{path}/{name}" if name else path, at=size, room=room - size)
            except HostError:
                raise
            except (OSError, ValueError, RuntimeError) as error:
                if not size:
                    target.unlink()
                return size, str(error)
            if not data:
                break
            out.write(data)
        return out.tell(), ""
