"""Frames on a byte stream: a header, which is one line of JSON, then a body of ``size`` raw bytes.

The send window of a connection limits how many bytes of files may be in flight, so that no event waits long behind them.
"""

from __future__ import annotations

import json
from collections import deque
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


#: How much longer than the fastest transfer a byte may be in flight, in seconds.
MAX_DELAY_S = 0.25
#: Bytes in flight: initially, at least, at most.
START, LEAST, MOST = 16 << 10, 8 << 10, 16 << 20
#: The smallest piece in bytes, and the number of pieces in a window.
PIECE, PIECES = 2 << 10, 4


class SendWindow:
    """Grows and shrinks with the acknowledgements of the controller. Positions count all bytes that were sent."""

    def __init__(self) -> None:
        self.size = START
        self._sent = 0
        self._acknowledged = 0
        self._positions: deque[tuple[int, float]] = deque()
        self._fastest_s = float("inf")
        self._shrunk_at = float("-inf")

    def free_bytes(self, *, events: bool) -> int:
        """The size limit of the next piece; 0: wait. Events have an additional share, so that they pass bulk."""
        limit = 2 * self.size if events else self.size
        return max(PIECE, self.size // PIECES) if self._sent - self._acknowledged < limit else 0

    def count_sent(self, size: int, now: float) -> int | None:
        """Count a sent piece; the position that the controller must acknowledge, None if it need not."""
        self._sent += size
        last = self._positions[-1][0] if self._positions else self._acknowledged
        if self._positions and self._sent - last < self.size // PIECES and self._sent - self._acknowledged < self.size:
            return None
        self._positions.append((self._sent, now))
        return self._sent

    def acknowledge(self, position: int, now: float) -> None:
        """The controller has received everything up to a position."""
        while self._positions and self._positions[0][0] <= position:
            reached, sent_at = self._positions.popleft()
            self._resize(reached - self._acknowledged, sent_at, now)
            self._acknowledged = reached

    def _resize(self, size: int, sent_at: float, now: float) -> None:
        """Grow after a fast transfer; after a slow one shrink, once for all pieces that were in flight already."""
        self._fastest_s = min(self._fastest_s, now - sent_at)
        if now - sent_at - self._fastest_s <= MAX_DELAY_S:
            self.size = min(MOST, self.size + size)
        elif sent_at > self._shrunk_at:
            self.size, self._shrunk_at = max(LEAST, self.size // 2), now
