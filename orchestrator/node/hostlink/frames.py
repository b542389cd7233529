"""Frames on a byte stream: a header, which is one line of JSON, then a body of ``size`` raw bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: The longest header and the longest body, in bytes.
LINE = 4 << 20
BODY = 1 << 30

Frame = tuple[dict[str, Any], bytes]


def encode(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encode one frame. ``size`` is set from the body."""
    sized = {**header, "size": len(body)} if body else header
    return json.dumps(sized, separators=(",", ":")).encode() + b"\n" + body


class Decoder:
    """Turns bytes, however they are split, into whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete. Raises ValueError if the stream holds no frames."""
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
                raise ValueError(f"{len(self._data)} bytes without a header")
            return None
        header = json.loads(self._data[:end])
        del self._data[: end + 1]
        size = header.get("size", 0) if isinstance(header, dict) else -1
        if not isinstance(size, int) or not 0 <= size <= BODY:
            raise ValueError(f"not a header: {str(header)[:80]}")
        return dict(header)
