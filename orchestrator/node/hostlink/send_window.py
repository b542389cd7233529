"""The send window of a connection: how many bytes of files may be in flight, so that no event waits long behind them."""

from __future__ import annotations

from collections import deque

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
