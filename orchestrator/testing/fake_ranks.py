"""The gangs of a bed in memory: ranks that join, step, are held, commit, fall and finish."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from .fake_ground import Ground
from .fake_parts import FakeGang

STEP_S = 0.01


class Ranks(Ground):
    """See the module. A checkpoint every ``every`` of ``steps`` steps."""

    def __init__(
        self, names: Sequence[str], *, seed: int, doubled: float, hosts: Mapping[str, str], steps: int, every: int
    ) -> None:
        super().__init__(names, seed=seed, doubled=doubled, hosts=hosts)
        self.steps, self.every = steps, every
        self.fence = -1
        self.checkpoints: list[dict[str, Any]] = []
        self.gangs: dict[int, FakeGang] = {}

    def _join(self, gang: FakeGang) -> None:
        if gang.over or not self._all_alive(gang):
            return
        for rank in gang.ranks:
            self._rank(gang, rank, "rank.joined", {"world": gang.size, "backend": "gloo"})
            self._rank(gang, rank, "rank.restored", {"step": gang.step, "sha256": f"c{gang.step}", "weights": "w"})
        self._at_point(gang, 0)
        self._later(STEP_S, lambda: self._step(gang, first=True))

    def _step(self, gang: FakeGang, first: bool = False) -> None:
        """One step of the whole gang; nothing moves while a rank is held or paused."""
        if gang.over:
            return
        if not self._all_alive(gang) or gang.held or not self._all_meet(gang):
            self._later(STEP_S, lambda: self._step(gang, first))
            return
        if self._at_point(gang, gang.step + 1):
            self._later(STEP_S, lambda: self._step(gang, first))
            return
        gang.step += 1
        if first:
            for rank in gang.ranks:
                self._rank(gang, rank, "rank.step", {"step": gang.step, "mark": "first"})
        self._rank(gang, 0, "progress", {"step": gang.step, "steps": self.steps, "loss": 1.0 / gang.step})
        if gang.step % self.every == 0 and self.fence <= gang.epoch:
            self._commit(gang)
        if gang.step == gang.last:
            self._finish(gang)
        else:
            self._later(STEP_S, lambda: self._step(gang))

    def _at_point(self, gang: FakeGang, step: int) -> bool:
        """Hold the ranks whose point this is; True when one was held."""
        found = [h for h in gang.holds if h["step"] == step and h["id"] not in gang.passed]
        for hold in found:
            if hold["rank"] in gang.held:
                continue  # a rank is held once at a time
            gang.passed.add(hold["id"])
            gang.held[hold["rank"]] = hold["id"]
            about = {"step": step, "phase": hold["phase"], "hold": hold["id"]}
            for rank in gang.ranks:
                self._rank(gang, rank, "rank.held" if rank == hold["rank"] else "rank.inside", about)
        return bool(found)

    def _commit(self, gang: FakeGang) -> None:
        parent = self.checkpoints[-1]["name"] if self.checkpoints else None
        name = f"e{gang.epoch}-s{gang.step}"
        value = {"name": name, "step": gang.step, "epoch": gang.epoch, "sha256": f"c{gang.step}", "parent": parent}
        self.checkpoints.append(value)
        self._rank(gang, 0, "checkpoint.commit", value)

    def _finish(self, gang: FakeGang) -> None:
        gang.over = True
        for rank, name in gang.ranks.items():
            self._rank(gang, rank, "rank.finished", {"steps": gang.step, "loss": "0x1p-3", "digest": {"model.w": "d"}})
            self._say(name, "agent", "rank.exit", {"rank": rank, "code": 0, "last_step": gang.step}, epoch=gang.epoch)

    def _break(self, gang: FakeGang, name: str) -> None:
        """The neighbours of a dead node raise a little later, unless they were stopped before."""
        for rank, other in gang.ranks.items():
            if other != name and rank not in gang.held:
                fall = functools.partial(self._fall, gang, rank, other)
                self._later(self.random.uniform(0.002, 0.05), fall)

    def _fall(self, gang: FakeGang, rank: int, name: str) -> None:
        if not gang.over and self.nodes[name].alive and not self.nodes[name].paused:
            value = {"rank": rank, "code": 1, "last_step": gang.step}
            self._say(name, "agent", "rank.exit", value, epoch=gang.epoch)

    def _all_meet(self, gang: FakeGang) -> bool:
        """Nobody is stopped or cut off from the others."""
        return not any(self.nodes[name].paused or not self.host_of(name).linked for name in gang.ranks.values())

    def _all_alive(self, gang: FakeGang) -> bool:
        return all(self.nodes[name].alive for name in gang.ranks.values())

    def _rank(self, gang: FakeGang, rank: int, f: str, value: Mapping[str, Any]) -> None:
        self._say(gang.ranks[rank], f"rank-{rank}.e{gang.epoch}", f, {"rank": rank, **value}, epoch=gang.epoch)
