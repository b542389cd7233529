"""The agents of a bed in memory: what each does with a command of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..model.event import Command
from .fake_parts import FakeGang
from .fake_ranks import Ranks


class Agents(Ranks):
    """See the module."""

    def _deliver(self, command: Command) -> None:
        node = self.nodes[str(command.node)]
        if node.alive and node.paused:
            node.inbox.append(command)
        elif node.alive:
            self._agent(command)

    def _agent(self, command: Command) -> None:
        node = self.nodes[str(command.node)]
        if self._repeated(command, "agent"):
            return
        late = command.f == "gang.start" and self.fence > int(command.epoch or 0)
        if late or command.incarnation not in (None, node.incarnation):
            self._answer(command, "fail", {"reason": "another incarnation, or the epoch is over"})
            return
        node.done[command.key] += 1
        self._answer(command, "ok", self._AGENT[command.f](self, command))

    def _fence(self, command: Command) -> dict[str, Any]:
        self.fence = max(self.fence, int(command.value["epoch"]))
        return {"epoch": self.fence}

    def _scan(self, command: Command) -> dict[str, Any]:
        lineage = command.value["lineage"]
        kept = [c for c in self.checkpoints if all(c["step"] <= s for e, s in lineage if e > c["epoch"])]
        return {"newest": max(kept, key=lambda c: (c["step"], c["epoch"]), default=None), "skipped": []}

    def _store(self, command: Command) -> dict[str, Any]:
        return {"address": "127.0.0.1", "port": 40000 + int(command.epoch or 0), "pid": 1, "retries": []}

    def _gang(self, command: Command) -> dict[str, Any]:
        spec, epoch = command.value, int(command.value["epoch"])
        start = int(spec["resume"]["step"]) if spec.get("resume") else 0
        gang = self.gangs.setdefault(
            epoch, FakeGang(epoch=epoch, size=spec["world_size"], last=self.steps, step=start, holds=spec["holds"])
        )
        for rank in spec["ranks"]:
            gang.ranks[rank] = str(command.node)
            warm = ["torch", "torch.distributed", "torch._dynamo"]
            self._rank(gang, rank, "rank.start", {"pid": 1, "preloaded": warm})
        if len(gang.ranks) == gang.size:
            self._later(self._latency(), lambda: self._join(gang))
        return {"pids": {str(rank): 1 for rank in spec["ranks"]}}

    def _stop(self, command: Command) -> dict[str, Any]:
        gang = self.gangs.get(int(command.value["epoch"]))
        if gang is None:
            return {"killed": [], "left": 0, "last_step": {}}
        gang.over = True
        mine = [rank for rank, name in gang.ranks.items() if name == command.node]
        return {"killed": mine, "left": 0, "last_step": {str(rank): gang.step for rank in mine}}

    def _release(self, command: Command) -> dict[str, Any]:
        for gang in self.gangs.values():
            if gang.held.get(int(command.value["rank"])) == command.value["hold"]:
                del gang.held[int(command.value["rank"])]
        return {}

    _AGENT: Mapping[str, Callable[[Agents, Command], dict[str, Any]]] = {
        "fence.write": _fence,
        "checkpoint.scan": _scan,
        "store.open": _store,
        "gang.start": _gang,
        "gang.stop": _stop,
        "rank.release": _release,
    }
