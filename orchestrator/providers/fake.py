"""A bed in memory with a virtual clock: agents answer, ranks step, nodes die, and nothing takes any real time.

For simulations: the orchestrator may be killed and built anew around the same FakeBed, which lives on. Latencies come
from a seeded generator, so that a seed is one interleaving; with ``doubled`` some events are delivered twice.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model.bed import BedSpec, BedStatus, NodeStatus
from ..model.event import Clock, Command, Event, EventType
from ..model.provider import Cursors, Fetched
from .fake_parts import Agenda, FakeGang, FakeNode, Voices

STEP_S = 0.01
BEAT_S = 0.25


class FakeBed:
    """See the module. ``hands_off``: faults that are ordered but do nothing (a disarmed injector)."""

    def __init__(
        self, names: Sequence[str], *, seed: int = 0, steps: int = 60, every: int = 5, doubled: float = 0.0
    ) -> None:
        self.random = random.Random(seed)
        self.steps, self.every, self.doubled = steps, every, doubled
        self.nodes = {name: FakeNode(name=name, incarnation=f"{name}-1") for name in names}
        self.said: list[Event] = []
        self.fence = -1
        self.checkpoints: list[dict[str, Any]] = []
        self.gangs: dict[int, FakeGang] = {}
        self.hands_off: set[str] = set()
        self._agenda = Agenda(100.0)
        self._voices = Voices()
        self._later(BEAT_S, self._beat)

    # --- model.provider.Provider ------------------------------------------------------------------------------------------

    def capabilities(self, host: str) -> frozenset[str]:
        return frozenset({"kill", "pause"})

    def observe(self, bed: BedSpec) -> BedStatus:
        return BedStatus(name="fake", nodes=tuple(self.status(name) for name in self.nodes))

    def prepare(self, bed: BedSpec) -> None: ...
    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        return ()

    def open(self, bed: BedSpec, run: str) -> Cursors:
        return {"said": 0}

    def close(self) -> None: ...

    def put(self, files: Mapping[str, bytes]) -> str:
        return "payload"

    def perform(self, command: Command) -> None:
        act = self._keeper if command.f in ("node.apply", "node.kill", "fault.act", "fault.heal") else self._deliver
        self._later(self._latency(), lambda: act(command))

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Moves the virtual clock to the next event, or by ``timeout_s``."""
        start, end = cursors.get("said", 0), self.time + timeout_s
        while len(self.said) == start and self._agenda.step(end):
            pass
        if len(self.said) == start:
            self._agenda.time = end
        return tuple(self.said[start:]), {"said": len(self.said)}

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return {node.name: (node.incarnation, node.beats) for node in self.nodes.values()}

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        return Fetched(path=path, size=0)

    def forget(self, bed: BedSpec, run: str) -> None: ...

    @property
    def time(self) -> float:
        return self._agenda.time

    def now(self) -> Clock:
        return Clock(boot="fake", mono=self.time, wall=self.time)

    def status(self, name: str) -> NodeStatus:
        node = self.nodes[name]
        state = "dead" if not node.alive else "paused" if node.paused else "warm"
        return NodeStatus(name=name, state=state, incarnation=node.incarnation, ordinal=node.ordinal, pid=node.ordinal)  # type: ignore[arg-type]

    def at(self, after_s: float, what: Callable[[], None]) -> None:
        """Let something happen later, e.g. ``lambda: bed.kill("n1")`` by hand."""
        self._later(after_s, what)

    def kill(self, name: str) -> None:
        """The node is gone; its keeper notices."""
        node = self.nodes[name]
        if not node.alive:
            return
        node.alive, node.paused, node.inbox = False, False, []
        incarnation = node.incarnation
        self._later(
            self._latency(), lambda: self._say(name, "keeper", "node.exit", {"code": -9}, incarnation=incarnation)
        )
        for gang in self.gangs.values():
            if not gang.over and name in gang.ranks.values():
                self._break(gang, name)

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _keeper(self, command: Command) -> None:
        name = str(command.node)
        node = self.nodes[name]
        if node.done[command.key]:
            self._answer(command, "ok", self._identity(node), writer="keeper")
            return
        node.done[command.key] += 1
        value = command.value
        if command.f == "node.kill":
            self.kill(name)
        elif command.f == "node.apply":
            self._start(node)
        elif command.f == "fault.act":
            self._inject(command, node)
            return
        else:
            self._do(node, value["act"]["heal"])
            self._say(name, "keeper", "fault.healed", {"id": value["id"]})
            self._say(name, "keeper", "heal.verified", {"id": value["id"]})
        self._answer(command, "ok", self._identity(node), writer="keeper")

    def _inject(self, command: Command, node: FakeNode) -> None:
        id, act = command.value["id"], command.value["act"]
        self._say(
            node.name, "keeper", "lease.armed", {"key": command.key, "lease_s": act["lease_s"], "holder": "keeper"}
        )
        if id not in self.hands_off:
            self._do(node, act["inject"])
        self._say(node.name, "keeper", "fault.injected", {"id": id})
        if id in self.hands_off:
            self._answer(command, "fail", {"reason": "not verified"}, writer="keeper")
            return
        self._say(node.name, "keeper", "fault.verified", {"id": id})
        self._answer(command, "ok", {"verified": True}, writer="keeper")

    def _do(self, node: FakeNode, primitives: Sequence[Mapping[str, Any]]) -> None:
        for one in primitives:
            kind, on = one["kind"], one["args"]["state"] == "on"
            if kind == "power" and on:
                self._start(node)
            elif kind == "power":
                self.kill(node.name)
            elif kind == "pause" and on:
                node.paused = node.alive
            else:
                self._resume(node)

    def _resume(self, node: FakeNode) -> None:
        node.paused = False
        waiting, node.inbox = node.inbox, []
        for command in waiting:
            self._agent(command)

    def _start(self, node: FakeNode) -> None:
        if not node.alive:
            node.alive, node.ordinal = True, node.ordinal + 1
            node.incarnation = f"{node.name}-{node.ordinal}"

    @staticmethod
    def _identity(node: FakeNode) -> dict[str, Any]:
        return {"incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.ordinal}

    # --- the agent ----------------------------------------------------------------------------------------------------

    def _deliver(self, command: Command) -> None:
        node = self.nodes[str(command.node)]
        if node.alive and node.paused:
            node.inbox.append(command)
        elif node.alive:
            self._agent(command)

    def _agent(self, command: Command) -> None:
        node = self.nodes[str(command.node)]
        late = command.f == "gang.start" and not node.done[command.key] and self.fence > int(command.epoch or 0)
        if late or command.incarnation not in (None, node.incarnation):
            self._answer(command, "fail", {"reason": "another incarnation, or the epoch is over"})
            return
        node.done[command.key] += 1
        if node.done[command.key] > 1 and command.f == "gang.start":
            node.done[command.key] -= 1
            self._answer(command, "ok", {"pids": {}})
            return
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

    # --- ranks --------------------------------------------------------------------------------------------------------

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
        if not self._all_alive(gang) or gang.held or any(self.nodes[n].paused for n in gang.ranks.values()):
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

    def _all_alive(self, gang: FakeGang) -> bool:
        return all(self.nodes[name].alive for name in gang.ranks.values())

    # --- saying -------------------------------------------------------------------------------------------------------

    def _rank(self, gang: FakeGang, rank: int, f: str, value: Mapping[str, Any]) -> None:
        self._say(gang.ranks[rank], f"rank-{rank}.e{gang.epoch}", f, {"rank": rank, **value}, epoch=gang.epoch)

    def _answer(self, command: Command, type: EventType, value: Mapping[str, Any], writer: str = "agent") -> None:
        self._say(str(command.node), writer, command.f, value, type=type, key=command.key, epoch=command.epoch)

    def _say(
        self, node: str, writer: str, f: str, value: Mapping[str, Any], *,
        type: EventType = "note", key: str | None = None, epoch: int | None = None, incarnation: str | None = None,
    ) -> None:  # fmt: skip
        """Say it after a latency; one writer's words stay in order, different writers' may overtake each other."""
        by = (node, incarnation or self.nodes[node].incarnation, writer)
        event = self._voices.event(by, type, f, value, self.now(), key=key, epoch=epoch)
        when = self._voices.when(by, self.time + self._latency())
        again = (when + self._latency(),) if self.random.random() < self.doubled else ()
        for moment in (when, *again):
            self._agenda.at(moment, lambda: self.said.append(event))

    def _latency(self) -> float:
        return self.random.uniform(0.0005, 0.005)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        self._agenda.at(self.time + after_s, what)

    def _beat(self) -> None:
        for node in self.nodes.values():
            node.beats += node.alive and not node.paused
        self._later(BEAT_S, self._beat)

    _AGENT: Mapping[str, Callable[[FakeBed, Command], dict[str, Any]]] = {
        "fence.write": _fence,
        "checkpoint.scan": _scan,
        "store.open": _store,
        "gang.start": _gang,
        "gang.stop": _stop,
        "rank.release": _release,
    }
