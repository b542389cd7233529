"""The agents of a bed in memory: what each does with a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.model.event import Command
from orchestrator.model.events import CheckpointScan, FenceWrite, GangStart, GangStop, RankHold, RankRelease, StoreOpen
from orchestrator.model.payload import Payload

from .fake_cluster import FakeCluster, FakeNode
from .fake_ranks import FakeRanks


class FakeAgents:
    """See the module. A paused agent keeps its commands until it is resumed; a dead one drops them."""

    def __init__(self, cluster: FakeCluster, ranks: FakeRanks) -> None:
        self._cluster, self._ranks = cluster, ranks
        self._handlers: Mapping[type[Payload] | None, Callable[[Command[Any]], dict[str, Any]]] = {
            FenceWrite: self._write_fence,
            CheckpointScan: self._scan_checkpoints,
            StoreOpen: self._open_store,
            GangStart: self._start_gang,
            GangStop: self._stop_gang,
            RankHold: self._hold_rank,
            RankRelease: self._release_rank,
        }

    def receive(self, command: Command) -> None:
        node = self._cluster.nodes[str(command.node)]
        if node.alive and node.paused:
            node.inbox.append(command)
        elif node.alive:
            self._perform(command)

    def resume(self, node: FakeNode) -> None:
        node.paused = False
        waiting, node.inbox = node.inbox, []
        for command in waiting:
            self._perform(command)

    def _perform(self, command: Command) -> None:
        node = self._cluster.nodes[str(command.node)]
        if self._cluster.is_repeated(command, "agent"):
            return
        if problem := self._problem(command, node):
            self._cluster.respond(command, "fail", {"reason": problem})
            return
        node.done[command.key] += 1
        self._cluster.respond(command, "ok", self._handlers[command.kind](command))

    def _problem(self, command: Command, node: FakeNode) -> str:
        """Why the command is rejected; empty if it is not."""
        if command.kind not in self._handlers:
            return f"an agent does not perform {command.f}"
        late = command.kind is GangStart and self._ranks.fence > int(command.epoch or 0)
        if late or command.incarnation not in (None, node.incarnation):
            return "another incarnation, or the epoch is over"
        return ""

    def _write_fence(self, command: Command[FenceWrite]) -> dict[str, Any]:
        self._ranks.fence = max(self._ranks.fence, command.data.epoch or 0)
        return {"epoch": self._ranks.fence}

    def _scan_checkpoints(self, command: Command[CheckpointScan]) -> dict[str, Any]:
        lineage = command.data.lineage or ()
        kept = [
            checkpoint
            for checkpoint in self._ranks.checkpoints
            if all(checkpoint["step"] <= step for epoch, step in lineage if epoch > checkpoint["epoch"])
        ]
        newest = max(kept, key=lambda checkpoint: (checkpoint["step"], checkpoint["epoch"]), default=None)
        return {"newest": newest, "skipped": []}

    def _open_store(self, command: Command[StoreOpen]) -> dict[str, Any]:
        return {"address": "127.0.0.1", "port": 40000 + int(command.epoch or 0), "pid": 1, "retries": []}

    def _start_gang(self, command: Command[GangStart]) -> dict[str, Any]:
        self._ranks.start(str(command.node), command.value)
        return {"pids": {str(rank): 1 for rank in command.data.ranks or ()}}

    def _stop_gang(self, command: Command[GangStop]) -> dict[str, Any]:
        gang = self._ranks.gangs.get(command.data.epoch or 0)
        if gang is None:
            return {"killed": [], "left": 0, "last_step": {}}
        gang.over = True
        ranks = gang.of_node.get(str(command.node), [])
        return {"killed": ranks, "left": 0, "last_step": {str(rank): gang.step for rank in ranks}}

    def _hold_rank(self, command: Command[RankHold]) -> dict[str, Any]:
        self._ranks.hold(command.epoch or 0, command.value)
        return {}

    def _release_rank(self, command: Command[RankRelease]) -> dict[str, Any]:
        rank, hold = command.data.rank, command.data.hold
        for gang in self._ranks.gangs.values():
            if rank is not None and gang.held.get(rank) == hold:
                del gang.held[rank]
        return {}
