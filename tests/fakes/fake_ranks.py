"""The gangs of a bed in memory: ranks join, step, are held, commit checkpoints, fail and finish."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from orchestrator.model.frozen import dataclass, field
from orchestrator.model.trial import SCRIPT

from .fake_cluster import FakeCluster

STEP_S = 0.01
#: The modules that a warm agent has imported before it forks a rank.
PRELOADED = ("torch", "torch.distributed", "torch._dynamo")


@dataclass(kw_only=True)
class FakeGang:
    """The ranks of one attempt: rank -> node, and node -> ranks (``of_node``). ``held``: rank -> hold id."""

    epoch: int
    size: int
    last: int
    step: int
    holds: list[Mapping[str, Any]]
    ranks: dict[int, str] = field(default_factory=dict)
    of_node: dict[str, list[int]] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    over: bool = False
    is_script: bool = False


class FakeRanks:
    """See the module. A run has ``steps`` steps, with a checkpoint after each ``every`` of them."""

    def __init__(self, cluster: FakeCluster, *, steps: int, every: int) -> None:
        self._cluster = cluster
        self.steps, self.every = steps, every
        self.fence = -1
        self.checkpoints: list[dict[str, Any]] = []
        self.gangs: dict[int, FakeGang] = {}
        cluster.on_node_killed = self._break_gangs

    def start(self, node: str, spec: Mapping[str, Any]) -> None:
        """Start the ranks of one node; the gang joins once all nodes have theirs."""
        epoch = int(spec["epoch"])
        start = int(spec["resume"]["step"]) if spec.get("resume") else 0
        gang = self.gangs.setdefault(
            epoch,
            FakeGang(epoch=epoch, size=spec["world_size"], last=self.steps, step=start, holds=list(spec["holds"])),
        )
        gang.is_script = spec["workload"] == SCRIPT
        gang.of_node[node] = list(spec["ranks"])
        for rank in spec["ranks"]:
            gang.ranks[rank] = node
            self.emit(gang, rank, "rank.start", {"pid": 1, "preloaded": list(PRELOADED)})
        if len(gang.ranks) == gang.size:
            self._cluster.later(self._cluster.latency(), lambda: self.join(gang))

    def hold(self, epoch: int, order: Mapping[str, Any]) -> None:
        """A hold that is ordered while the gang runs: its step, or the next one; once."""
        gang = self.gangs[epoch]
        if order["hold"] not in {hold["id"] for hold in gang.holds}:
            gang.holds.append({**order, "id": order["hold"], "step": max(order["step"], gang.step + 1)})

    def join(self, gang: FakeGang) -> None:
        if gang.over or not self._all_alive(gang):
            return
        for rank in gang.ranks:
            self.emit(gang, rank, "rank.joined", {"world": gang.size, "backend": "gloo"})
            self.emit(gang, rank, "rank.restored", {"step": gang.step, "sha256": f"c{gang.step}", "weights": "w"})
        self._hold_at(gang, 0)
        self._cluster.later(STEP_S, lambda: self.step(gang, first=True))

    def step(self, gang: FakeGang, first: bool = False) -> None:
        """One step of the whole gang; it waits while a rank is held or paused."""
        if gang.over:
            return
        if not self._all_alive(gang) or gang.held or not self._all_connected(gang):
            self._cluster.later(STEP_S, lambda: self.step(gang, first))
            return
        if self._hold_at(gang, gang.step + 1):
            self._cluster.later(STEP_S, lambda: self.step(gang, first))
            return
        gang.step += 1
        if first:
            for rank in gang.ranks:
                self.emit(gang, rank, "rank.step", {"step": gang.step, "mark": "first"})
        self.emit(gang, 0, "progress", {"step": gang.step, "steps": self.steps, "loss": 1.0 / gang.step})
        if gang.step % self.every == 0 and self.fence <= gang.epoch:
            self.commit(gang)
        if gang.step == gang.last:
            self._finish(gang)
        else:
            self._cluster.later(STEP_S, lambda: self.step(gang))

    def commit(self, gang: FakeGang) -> None:
        parent = self.checkpoints[-1]["name"] if self.checkpoints else None
        name = f"e{gang.epoch}-s{gang.step}"
        value = {"name": name, "step": gang.step, "epoch": gang.epoch, "sha256": f"c{gang.step}", "parent": parent}
        self.checkpoints.append(value)
        self.emit(gang, 0, "checkpoint.commit", value)
        if gang.is_script:
            self.emit(gang, 0, "save.committed", {"path": f"{name}.pt", "n": gang.step, "bytes": 1})

    def fail(self, gang: FakeGang, rank: int, node: str) -> None:
        """A rank raises, unless its gang was stopped before or its node is stopped."""
        if not gang.over and self._cluster.nodes[node].alive and not self._cluster.nodes[node].paused:
            value = {"rank": rank, "code": 1, "last_step": gang.step}
            self._cluster.emit(node, "agent", "rank.exit", value, epoch=gang.epoch)

    def emit(self, gang: FakeGang, rank: int, f: str, value: Mapping[str, Any]) -> None:
        writer = f"rank-{rank}.e{gang.epoch}"
        self._cluster.emit(gang.ranks[rank], writer, f, {"rank": rank, **value}, epoch=gang.epoch)

    def _hold_at(self, gang: FakeGang, step: int) -> bool:
        """Hold the ranks that are to be held at this step; whether there is any."""
        holds = [hold for hold in gang.holds if hold["step"] == step and hold["id"] not in gang.passed]
        for hold in holds:
            if hold["rank"] in gang.held:
                continue  # a rank is held once at a time
            gang.passed.add(hold["id"])
            gang.held[hold["rank"]] = hold["id"]
            value = {"step": step, "phase": hold["phase"], "hold": hold["id"]}
            for rank in gang.ranks:
                self.emit(gang, rank, "rank.held" if rank == hold["rank"] else "rank.inside", value)
        return bool(holds)

    def _finish(self, gang: FakeGang) -> None:
        gang.over = True
        for rank, node in gang.ranks.items():
            self.emit(gang, rank, "rank.finished", {"steps": gang.step, "loss": "0x1p-3", "digest": {"model.w": "d"}})
            value = {"rank": rank, "code": 0, "last_step": gang.step}
            self._cluster.emit(node, "agent", "rank.exit", value, epoch=gang.epoch)

    def _break_gangs(self, lost: str) -> None:
        """The ranks beside a killed node raise a little later."""
        for gang in self.gangs.values():
            if gang.over or lost not in gang.ranks.values():
                continue
            for rank, node in gang.ranks.items():
                if node != lost and rank not in gang.held:
                    self._cluster.later(
                        self._cluster.random.uniform(0.002, 0.05), functools.partial(self.fail, gang, rank, node)
                    )

    def _all_connected(self, gang: FakeGang) -> bool:
        """Whether no rank is stopped or cut off from the others."""
        nodes = gang.ranks.values()
        return not any(self._cluster.nodes[name].paused or not self._cluster.host_of(name).linked for name in nodes)

    def _all_alive(self, gang: FakeGang) -> bool:
        return all(self._cluster.nodes[name].alive for name in gang.ranks.values())
