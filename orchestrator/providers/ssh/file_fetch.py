"""Files of a host that are not mirrored, fetched in pieces on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
        room = max(0, limit - size)
        capped += [name] if room < length else []
        wanted = files.parts(name or path, length, room)
        try:
            received, reason = (0, f"{name}: {closed}") if closed else _file(request, path, name, to, wanted)
        except HostError as error:
            return Fetched(path=path, size=size, capped=tuple(capped), reason=str(error))
        size += received
        problems += [reason] if reason else []
    return Fetched(path=path, size=size, capped=tuple(capped), reason=files.summary(problems))


def _file(
    request: Callable[..., Response], path: str, name: str, to: Path, wanted: Sequence[tuple[int, int]]
) -> tuple[int, str]:
    """(bytes received, why not all). ``wanted``: (start, end) of parts. Raises HostError if the host stops responding."""
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return 0, f"{name!r} leaves its directory"
    target = to / name if name else to
    target.parent.mkdir(parents=True, exist_ok=True)
    received = 0
    with target.open("wb") as out:
        for start, end in wanted:
            if start:
                out.write(files.gap(start - received))
            at = start
            while at < end:
                try:
                    _, data = request(do="read", path=f"{path}/{name}" if name else path, at=at, room=end - at)
                except HostError:
                    raise
                except (OSError, ValueError, RuntimeError) as error:
                    if not received:
                        target.unlink()
                    return received, str(error)
                if not data:
                    break
                out.write(data)
                at += len(data)
                received += len(data)
        return received, ""
