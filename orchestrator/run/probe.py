"""Probe nodes that may be lost, in threads: a probe starts when a node is suspect, its result is read when the node is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..model.bed import NodeStatus
from ..model.frozen import dataclass, field

#: A probe that takes longer counts as a host that does not answer.
OVERDUE_S = 1.5
#: A result that is older says nothing about the present.
STALE_S = 3.0
#: An unreachable host is probed again after this time: a link may be back at any moment.
FRESH_S = 0.3
#: A repeated probe is mostly done within this time.
MOMENT_S = 0.05


@dataclass(kw_only=True)
class _Probe:
    started: float
    ended: float = 0.0
    status: NodeStatus | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Probes:
    """The probes under way, by node. ``observe`` may take a second, so each call has a thread of its own."""

    def __init__(self, observe: Callable[[str], NodeStatus], clock: Callable[[], float] = time.monotonic) -> None:
        self._observe = observe
        self._clock = clock
        self._under_way: dict[str, _Probe] = {}

    def start(self, node: str) -> None:
        """Start a probe, unless one is under way. A result that nothing read is replaced once it is stale."""
        probe = self._under_way.get(node)
        if probe is None or self._clock() - probe.started >= STALE_S:
            self._start(node)

    def status(self, node: str) -> NodeStatus:
        """Return the result, each one once; ``starting`` while the probe runs, ``unreachable`` once it is overdue."""
        self.start(node)
        probe = self._under_way[node]
        if probe.status and probe.status.state == "unreachable" and self._clock() - probe.ended > FRESH_S:
            probe = self._start(node)
            probe.done.wait(MOMENT_S)
        if probe.status is None and self._clock() - probe.started < OVERDUE_S:
            return NodeStatus(name=node, state="starting", reason="being probed")
        del self._under_way[node]
        return probe.status or NodeStatus(name=node, state="unreachable", reason="its host does not answer")

    def _start(self, node: str) -> _Probe:
        probe = self._under_way[node] = _Probe(started=self._clock())

        def run() -> None:
            status = self._observe(node)
            probe.ended = self._clock()
            probe.status = status
            probe.done.set()

        threading.Thread(target=run, daemon=True).start()
        return probe
