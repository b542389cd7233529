"""The writer of an event file: one file per writer, one numbered line per event."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.payload import Payload
from ...system import host_facts


class EventLog:
    """Appends events to one file, numbered from 1. In an existing file the numbering continues.

    ``key``: each line gets a ``mac``, the HMAC-SHA256 of the line without it. As the numbers have no gap, no line can be
    changed, dropped or exchanged without the key.
    """

    def __init__(self, path: Path, *, writer: str, key: bytes = b"") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._writer = writer
        self._key = key
        self._boot = host_facts.boot_id()
        self._numbers = itertools.count(count_lines(path) + 1)

    def append(
        self,
        kind: str,
        f: str,
        value: Mapping[str, Any],
        *,
        node: str | None = None,
        incarnation: str | None = None,
        key: str | None = None,
        epoch: int | None = None,
        run: str | None = None,
    ) -> None:
        """Append one event with the current time, in one write."""
        source = {"node": node, "incarnation": incarnation, "writer": self._writer, "n": next(self._numbers)}
        line = {
            "type": kind,
            "f": f,
            "key": key,
            "node": node,
            "epoch": epoch,
            "value": dict(value),
            "at": {"boot": self._boot, "mono": time.monotonic(), "wall": time.time()},
            "source": _present(source),
            "run": run,
        }
        text = json.dumps(_present(line), separators=(",", ":"))
        if self._key:
            text = f'{text[:-1]},"mac":"{hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()}"}}'
        os.write(self._fd, text.encode() + b"\n")

    def note(
        self,
        payload: Payload,
        *,
        node: str | None = None,
        incarnation: str | None = None,
        epoch: int | None = None,
        run: str | None = None,
    ) -> None:
        value = codec.plain(payload)
        self.append("note", payload.NAME, value, node=node, incarnation=incarnation, epoch=epoch, run=run)

    def close(self) -> None:
        os.close(self._fd)


def count_lines(path: Path) -> int:
    """Count the whole lines of a file: the numbering of its next writer continues there."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in fields.items() if item is not None}
