"""Looks at nodes that may be lost, without holding up whoever drives the run: begun when one is suspect, needed when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..model.bed import NodeStatus

#: A look that takes longer shows that nobody answers.
OVERDUE_S = 1.5
#: What was seen so long ago says nothing about now.
STALE_S = 3.0
#: That a host could not be reached is seen again so soon: a link may be back at any moment.
FRESH_S = 0.3
#: Whoever looks again knows at once, mostly.
MOMENT_S = 0.05


@dataclass(kw_only=True)
class _Look:
    begun: float
    ended: float = 0.0
    status: NodeStatus | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Looks:
    """``look`` may take a second; it is called in a thread of its own, and nobody waits for it."""

    def __init__(self, look: Callable[[str], NodeStatus], clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._under_way: dict[str, _Look] = {}

    def ahead(self, node: str) -> None:
        """Begin to look, unless that is under way; what was seen and asked for by nobody is of then, not of now."""
        before = self._under_way.get(node)
        if before and self._clock() - before.begun < STALE_S:
            return
        self._begin(node)

    def now(self, node: str) -> NodeStatus:
        """What was seen, each look once; ``starting`` while nobody can tell yet."""
        self.ahead(node)
        found = self._under_way[node]
        if found.status and found.status.state == "unreachable" and self._clock() - found.ended > FRESH_S:
            found = self._begin(node)
            found.done.wait(MOMENT_S)
        if found.status is None and self._clock() - found.begun < OVERDUE_S:
            return NodeStatus(name=node, state="starting", reason="being looked at")
        del self._under_way[node]
        return found.status or NodeStatus(name=node, state="unreachable", reason="its host does not answer")

    def _begin(self, node: str) -> _Look:
        found = self._under_way[node] = _Look(begun=self._clock())

        def work() -> None:
            status = self._look(node)
            found.ended = self._clock()
            found.status = status
            found.done.set()

        threading.Thread(target=work, daemon=True).start()
        return found
