"""How many bytes of files may be on their way: as many as arrive within a moment, so that nothing waits long behind them."""

from __future__ import annotations

from collections import deque

#: So much longer than it takes at best a byte may be on its way, in seconds.
WANTED_S = 0.25
#: Bytes on their way: at first, at least, at most.
START, LEAST, MOST = 16 << 10, 8 << 10, 16 << 20
#: The smallest piece, and of how many pieces a window is.
PIECE, PIECES = 2 << 10, 4


class Window:
    """Opens and closes by what the other side says to have got. Positions count all bytes that were sent."""

    def __init__(self) -> None:
        self.size = START
        self._sent = 0
        self._got = 0
        self._marks: deque[tuple[int, float]] = deque()
        self._best = float("inf")
        self._shrunk = float("-inf")

    def room(self, *, events: bool) -> int:
        """How many bytes the next piece may have; 0: wait. Events have a share of their own, behind which bulk waits."""
        limit = 2 * self.size if events else self.size
        return max(PIECE, self.size // PIECES) if self._sent - self._got < limit else 0

    def sent(self, size: int, now: float) -> int | None:
        """So much was sent; the position that the other side is to say once it has it, None where it need not."""
        self._sent += size
        last = self._marks[-1][0] if self._marks else self._got
        if self._marks and self._sent - last < self.size // PIECES and self._sent - self._got < self.size:
            return None
        self._marks.append((self._sent, now))
        return self._sent

    def got(self, position: int, now: float) -> None:
        """The other side has everything up to a position."""
        while self._marks and self._marks[0][0] <= position:
            place, since = self._marks.popleft()
            self._judge(place - self._got, since, now)
            self._got = place

    def _judge(self, size: int, since: float, now: float) -> None:
        """Less may be on its way where it takes long, once for what was sent before that was known; else more."""
        self._best = min(self._best, now - since)
        if now - since - self._best <= WANTED_S:
            self.size = min(MOST, self.size + size)
        elif since > self._shrunk:
            self.size, self._shrunk = max(LEAST, self.size // 2), now
