"""Frames on a stream of bytes: a header, which is one line of JSON, then as many raw bytes as its ``size`` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: A header longer than this is no header, and a body longer than this is nothing that anybody here sends.
LINE = 4 << 20
BODY = 1 << 30

Frame = tuple[dict[str, Any], bytes]


def encode(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame. ``size`` is set from the body."""
    sized = {**header, "size": len(body)} if body else header
    return json.dumps(sized, separators=(",", ":")).encode() + b"\n" + body


class Decoder:
    """Takes bytes as they come, however they are cut, and gives whole frames: part of one is never given."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises ValueError where the stream is none of frames."""
        self._data += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._header is None:
            self._header = self._line()
        if self._header is None:
            return None
        size = self._header.get("size", 0)
        if len(self._data) < size:
            return None
        header, self._header = self._header, None
        body = bytes(self._data[:size])
        del self._data[:size]
        return header, body

    def _line(self) -> dict[str, Any] | None:
        end = self._data.find(b"\n")
        if end < 0:
            if len(self._data) > LINE:
                raise ValueError(f"{len(self._data)} bytes and no header in them")
            return None
        header = json.loads(self._data[:end])
        del self._data[: end + 1]
        size = header.get("size", 0) if isinstance(header, dict) else -1
        if not isinstance(size, int) or not 0 <= size <= BODY:
            raise ValueError(f"not a header: {str(header)[:80]}")
        return dict(header)
