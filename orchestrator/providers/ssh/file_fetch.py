"""Files of a host that are not mirrored, fetched in pieces on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...model.provider import Fetched
from .. import files
from .connection_errors import HostError
from .requests import Response

Request = Callable[[Mapping[str, Any], bytes, float], Response]


def pull(send: Request, path: str, to: Path, limit: int, deadline_s: float) -> Fetched:
    """Fetch a file or a tree, small files first, ``limit`` bytes at most in all. Raises OSError if this machine has no space."""
    until = time.monotonic() + deadline_s

    def request(**header: Any) -> Response:
        return send(header, b"", max(0.01, until - time.monotonic()))

    size, capped = 0, []
    problems: list[str] = []
    try:
        listed = request(do="list", path=path)[0]
    except (OSError, ValueError, RuntimeError) as error:
        return Fetched(path=path, size=0, reason=str(error))
    if listed is None:
        return Fetched(path=path, size=0, reason="not there")
    for name, length, closed in sorted(listed, key=lambda entry: (entry[1], entry[0])):
        part = max(0, min(limit - size, length))
        capped += [name] if part < length else []
        try:
            received, reason = (0, f"{name}: {closed}") if closed else _file(request, path, name, to, part)
        except HostError as error:
            return Fetched(path=path, size=size, capped=tuple(capped), reason=str(error))
        size += received
        problems += [reason] if reason else []
    return Fetched(path=path, size=size, capped=tuple(capped), reason=files.summary(problems))


def _file(request: Callable[..., Response], path: str, name: str, to: Path, max_bytes: int) -> tuple[int, str]:
    """(bytes received, why not all). Raises HostError if the host stops responding."""
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return 0, f"{name!r} leaves its directory"
    target = to / name if name else to
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        while (size := out.tell()) < max_bytes:
            try:
                _, data = request(do="read", path=f"{path}/{name}" if name else path, at=size, room=max_bytes - size)
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
