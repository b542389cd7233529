"""A small bed that speaks the vocabulary of events and leaves node files: what synthetic histories are written with."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.faults import crash_node, crash_rank, cut_link, hang_rank, pause_node, slow_link, slow_node
from orchestrator.model import codec
from orchestrator.model.act import Act, HostFacts, Target
from orchestrator.model.event import Clock, Event, History, Source
from orchestrator.model.payload import EventType
from orchestrator.model.run import ChunkRecord, Run, StepRecord, Twin
from orchestrator.model.trial import FaultPlan, Trial
from orchestrator.model.watch import WatchFile

RUN = "2026-11-21T02-00-07Z-dp-ring-3f9c"
BOOT = "boot-a"
START = 1000.0
STEP_S = 0.01
WARM = ["torch", "torch.distributed", "torch._dynamo"]
HOST = HostFacts(name="here", provider="process", capabilities=frozenset({"kill", "pause"}))
ACTS: Mapping[str, Any] = {
    "crash-node": crash_node, "crash-rank": crash_rank, "cut-link": cut_link, "hang-rank": hang_rank, "pause-node": pause_node,
    "slow-link": slow_link, "slow-node": slow_node,
}  # fmt: skip


def sha(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass
class Files:
    """What the nodes left: step records and the texts of files by path."""

    records: list[StepRecord] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    processes: list[WatchFile] = field(default_factory=list)

    def steps(self) -> Iterator[StepRecord]:
        return iter(self.records)

    def chunks(self) -> Iterator[ChunkRecord]:
        return iter(())

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        return iter(())

    def watch(self) -> Iterator[WatchFile]:
        return iter(self.processes)

    def log(self, node: str, rank: int, epoch: int) -> str:
        ends = f"-e{epoch}/rank-{rank}.log"
        logs = (self.texts[path] for path in self.texts if path.startswith(f"nodes/{node}/") and path.endswith(ends))
        return next(logs, "")

    def paths(self) -> tuple[str, ...]:
        return tuple(self.texts)

    def event_sources(self) -> Iterator[tuple[str, Source]]:
        return iter(())

    def read(self, path: str) -> bytes:
        return b""

    def sha256(self, path: str) -> str:
        return hashlib.sha256(self.texts[path].encode()).hexdigest()

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return iter(())


@dataclass
class Node:
    incarnation: str
    ordinal: int
    pid: int


@dataclass
class Bed:
    """Writes a history as the orchestrator and the nodes would. ``n4`` is the spare; 60 steps, a checkpoint every 5."""

    trial: Trial
    nodes: dict[str, Node] = field(default_factory=dict)
    slots: list[str] = field(default_factory=lambda: ["n0", "n1", "n2", "n3"])
    events: list[Event] = field(default_factory=list)
    files: Files = field(default_factory=Files)
    last_step: int = 60
    every: int = 5
    epoch: int = 0
    resume: int = 0
    now: float = START
    seed: object = None
    _numbers: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _stepped: set[tuple[int, int]] = field(default_factory=set)
    _commits: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed = self.trial.seed
        self.nodes = {f"n{i}": Node(incarnation=f"inc{i}a", ordinal=1, pid=4131 + i) for i in range(5)}

    # --- writing ------------------------------------------------------------------------------------------------------

    def say(
        self, writer: str, f: str, value: Mapping[str, Any] | None = None, *,
        type: EventType = "note", node: str | None = None, key: str | None = None, epoch: int | None = None, dt: float = 0.001,
    ) -> Event:  # fmt: skip
        self.now += dt
        incarnation = self.nodes[node].incarnation if node and writer != "ctl" else None
        who = (node, incarnation) if writer not in ("ctl", "keeper") else (None, None)
        self._numbers[*who, writer] += 1
        source = Source(
            writer=writer,
            n=self._numbers[*who, writer],
            node=None if writer == "ctl" else node,
            incarnation=incarnation,
        )
        event = Event(
            type=type, f=f, key=key, node=node, epoch=epoch, value=dict(value or {}), source=source,
            at=Clock(boot=BOOT, mono=self.now, wall=self.now), seq=len(self.events) + 1, t=round(self.now - START, 6),
        )  # fmt: skip
        self.events.append(event)
        return event

    def ctl(self, f: str, value: Mapping[str, Any] | None = None, **about: Any) -> Event:
        return self.say("ctl", f, value, **about)

    def ask(self, f: str, key: str, node: str | None, value: Mapping[str, Any] | None = None, **about: Any) -> None:
        epoch = about.pop("epoch", self.epoch)
        self.ctl(f, {**(value or {}), "deadline_s": 10.0}, type="invoke", key=key, node=node, epoch=epoch, **about)

    def answer(self, writer: str, f: str, key: str, node: str, value: Mapping[str, Any] | None = None) -> None:
        self.say(writer, f, value, type="ok", key=key, node=node, epoch=self.epoch)

    def do(self, writer: str, f: str, key: str, node: str, value: Any = None, result: Any = None) -> None:
        self.ask(f, key, node, value)
        self.answer(writer, f, key, node, result)

    def rank(self, rank: int, f: str, **value: Any) -> Event:
        writer = f"rank-{rank}.e{self.epoch}"
        return self.say(writer, f, {"rank": rank, **value}, node=self.slots[rank], epoch=self.epoch, dt=0.0001)

    # --- the life of a run ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        roles = {name: "spare" if name == "n4" else "node" for name in self.nodes}
        nodes = {
            n: {**dataclasses.asdict(node), "role": roles[n], "address": "127.0.0.1"} for n, node in self.nodes.items()
        }
        self.ctl("run.begin", {"run": RUN, "bed": "local", "pid": 1, "nodes": nodes, "cursors": {}}, dt=0.0)
        for fault in self.trial.faults:
            self.ctl(
                "fault.planned", {"id": fault.id, "fault": fault.fault, "node": fault.node}, key=f"f/{fault.id}/planned"
            )
        self.ctl("timer", {"after_s": 600.0, "deadline_s": 4200.0}, type="invoke", key="wall")

    def start(self) -> None:
        """Fence, store, checkpoint, gang, until every rank has restored."""
        e, leader = f"e{self.epoch}", self.slots[0]
        fixer = leader
        self.do("agent", "fence.write", f"{e}/fence", fixer, {"epoch": self.epoch}, {"epoch": self.epoch})
        self.do(
            "agent", "store.open", f"{e}/store", leader, {"epoch": self.epoch}, {"address": "127.0.0.1", "port": 4000}
        )
        chosen = self._commits.get(self.resume)
        if self.epoch:
            self.do("agent", "checkpoint.scan", f"{e}/scan", fixer, {"dir": "c"}, {"newest": chosen, "skipped": []})
        self.ctl("resume.chosen", chosen or {"step": 0}, key=f"{e}/resume", epoch=self.epoch)
        for slot, node in enumerate(self.slots):
            self.ask("gang.start", f"{e}/start/{node}", node, self._spec(slot, node))
        for slot, node in enumerate(self.slots):
            self.answer(
                "agent", "gang.start", f"{e}/start/{node}", node, {"pids": {str(slot): 100 + slot}, "threads": 1}
            )
        for rank in range(4):
            self.rank(
                rank, "rank.start", pid=100 + rank, ppid=self.nodes[self.slots[rank]].pid, threads=1, preloaded=WARM
            )
            self._open_files(rank)
        for rank in range(4):
            self.rank(rank, "rank.joined", world=4, backend="gloo")
        self.ctl("gang.joined", key=f"{e}/joined", epoch=self.epoch)
        result = {"step": self.resume, "name": chosen and chosen["name"], "sha256": chosen and chosen["sha256"]}
        for rank in range(4):
            self.rank(rank, "rank.restored", **result, weights=self.digest(self.resume))

    def train(self, until: int) -> None:
        """Steps up to and with ``until``, with commits and a little progress."""
        for step in range(self.resume + 1, until + 1):
            begun = self.now
            self.now += STEP_S
            for rank in range(4):
                self.files.records.append(
                    StepRecord(
                        epoch=self.epoch, node=self.slots[rank], rank=rank, step=step, loss=self.loss(rank, step),
                        start=begun, end=self.now, digest=self.digest(step), incarnation=self.nodes[self.slots[rank]].incarnation,
                    )
                )  # fmt: skip
                if (self.epoch, rank) not in self._stepped:
                    self._stepped.add((self.epoch, rank))
                    self.rank(rank, "rank.step", step=step, mark="first")
            if step % 20 == 0:
                self.rank(0, "progress", step=step, steps=self.last_step, loss=1.0 / step)
            if step % self.every == 0:
                self.commit(step)
        self.resume = max(self.resume, until)

    def commit(self, step: int) -> None:
        name = f"e{self.epoch}-s{step}"
        value = {"name": name, "step": step, "epoch": self.epoch, "sha256": sha(name), "parent": None, "bytes": 9}
        self._commits[step] = value
        self.rank(0, "checkpoint.commit", **value, write_s=0.002)

    def crash(self, fault: FaultPlan) -> None:
        """A held fault that kills its node, detected by its keeper."""
        node = self.act(fault)
        self.say("keeper", "node.exit", {"code": -9, "pid": self.nodes[node].pid}, node=node, epoch=self.epoch)
        self.say("keeper", "fault.verified", {"id": fault.id, "evidence": {"left": 0}}, node=node, epoch=self.epoch)
        self.answer("keeper", "fault.act", f"f/{fault.id}/act", node, {"verified": True})

    def act(self, fault: FaultPlan, *, held: bool = False) -> str:
        """Held, resolved, armed, injected; the node. ``held``: the state to verify was there before."""
        slot = fault.node if isinstance(fault.node, int) else self.slots.index(fault.node)
        node = self.slots[slot]
        about = {"step": fault.at.step, "phase": fault.at.phase, "hold": fault.id}
        self.rank(slot, "rank.held", **about)
        for rank in range(4):
            if rank != slot:
                self.rank(rank, "rank.inside", **about)
        target = {"id": fault.id, "asked": fault.node, "node": node, "rank": slot}
        self.ctl("fault.target", target, key=f"f/{fault.id}/target", node=node, epoch=self.epoch)
        value = {"id": fault.id, "fault": fault.fault, "act": codec.plain(act_of(fault, node))}
        self.ask("fault.act", f"f/{fault.id}/act", node, value)
        armed = {"key": f"f/{fault.id}/act", "lease_s": 120.0, "holder": "keeper"}
        self.say("keeper", "lease.armed", armed, node=node, epoch=self.epoch)
        before = {"id": fault.id, "held": held, "evidence": {}}
        self.say("keeper", "fault.before", before, node=node, epoch=self.epoch)
        self.say("keeper", "fault.injected", {"id": fault.id, "evidence": {}}, node=node, epoch=self.epoch)
        return node

    def stop(self, lost: Sequence[str] = ()) -> None:
        e = f"e{self.epoch}"
        alive = [node for node in self.slots if node not in lost]
        for node in alive:
            self.ask("gang.stop", f"{e}/stop/{node}", node, {"epoch": self.epoch, "dump": False})
        for node in alive:
            rank = self.slots.index(node)
            gone = {"rank": rank, "pid": 100 + rank, "code": -9, "last_step": self.resume}
            self.say("agent", "rank.exit", gone, node=node, epoch=self.epoch)
            self.answer(
                "agent",
                "gang.stop",
                f"{e}/stop/{node}",
                node,
                {"killed": [1], "left": 0, "last_step": {str(rank): self.resume}},
            )

    def recover(self, lost: str, policy: str, resume: int, detector: str = "node.exit", spare: str = "n4") -> None:
        """Decide, start the next epoch and restore."""
        slots = [spare if node == lost and policy == "spare" else node for node in self.slots]
        self.epoch += 1
        decided = {"lost": [lost], "failed": [], "detector": detector, "policy": {lost: policy}, "slots": slots}
        self.ctl("recovery.decided", decided, key=f"e{self.epoch}/decided", epoch=self.epoch)
        if policy == "restart" and detector == "node.silent":
            self.kill(lost)
        if policy == "restart":
            self.apply(lost, f"e{self.epoch}/apply/{lost}")
        self.slots, self.resume = slots, resume
        self.start()

    def kill(self, node: str) -> None:
        """A node that is only silent is killed before it is replaced; what was asked of its agent is closed."""
        key = f"e{self.epoch}/kill/{node}"
        self.ask("node.kill", key, node)
        self.say("keeper", "node.exit", {"code": -9, "pid": self.nodes[node].pid}, node=node)
        about = {"key": "f/f0/release", "node": node, "epoch": self.epoch - 1}
        self.ctl("rank.release", {"reason": "the node exited"}, type="info", **about)
        self.answer("keeper", "node.kill", key, node, {"killed": [1], "left": 0})

    def apply(self, node: str, key: str) -> None:
        self.ask("node.apply", key, node, {"node": node}, epoch=None)
        self.renew(node)
        self.say("agent", "agent.ready", {"pid": self.nodes[node].pid, "threads": 1, "torch": True}, node=node)
        self.say("keeper", "node.apply", dataclasses.asdict(self.nodes[node]), type="ok", key=key, node=node)

    def renew(self, node: str) -> None:
        old = self.nodes[node]
        self.nodes[node] = Node(incarnation=f"{old.incarnation}+", ordinal=old.ordinal + 1, pid=old.pid + 100)

    def finish(self, heal: Sequence[str] = (), *, healing: bool = True) -> None:
        """The ranks leave; stop, heal, gather, end."""
        for rank in range(4):
            digest = self.final(rank)
            self.rank(rank, "traffic", measured={"all-reduce": 971_048}, predicted={"all-reduce": 4 * 971_048})
            self.rank(
                rank,
                "rank.finished",
                steps=self.last_step,
                loss=self.loss(rank, self.last_step),
                digest=digest,
                metrics={},
            )
        self.rank(0, "reference.compared", steps=self.last_step, difference=1e-6, of="a weight")
        for rank, node in enumerate(self.slots):
            left = {"rank": rank, "pid": 100 + rank, "code": 0, "last_step": self.last_step}
            self.say("agent", "rank.exit", left, node=node, epoch=self.epoch)
        for rank, node in enumerate(self.slots):
            key = f"close/e{self.epoch}/stop/{node}"
            self.do(
                "agent",
                "gang.stop",
                key,
                node,
                {"epoch": self.epoch},
                {"killed": [], "left": 0, "last_step": {str(rank): 60}},
            )
        for fault in self.trial.faults if healing else ():
            self._heal(fault, heal)
        self.ctl("gather", {"deadline_s": 60.0}, type="invoke", key="gather", epoch=self.epoch)
        self.ctl(
            "gather", {"files": 9, "bytes": 9, "missing": [], "capped": []}, type="ok", key="gather", epoch=self.epoch
        )
        self.ctl("timer", {"reason": "the run ended"}, type="info", key="wall")
        self.ctl("run.end", {"outcome": "finished", "reason": "", "kind": ""}, key="end", epoch=self.epoch)

    def _heal(self, fault: FaultPlan, dead: Sequence[str]) -> None:
        target = next(e for e in self.events if e.f == "fault.target" and e.value["id"] == fault.id)
        node = str(target.node)
        self.ask("fault.heal", f"f/{fault.id}/heal", node, {"id": fault.id, "act": codec.plain(act_of(fault, node))})
        self.say("keeper", "fault.healed", {"id": fault.id, "evidence": {}}, node=node)
        if node in dead:
            self.renew(node)
            self.say("agent", "agent.ready", {"pid": self.nodes[node].pid, "threads": 1, "torch": True}, node=node)
        self.say("keeper", "heal.verified", {"id": fault.id, "evidence": {}}, node=node)
        self.answer("keeper", "fault.heal", f"f/{fault.id}/heal", node, {"verified": True})

    # --- what is computed -----------------------------------------------------------------------------------------------

    def loss(self, rank: int, step: int) -> str:
        return (1.0 / step + int(sha(self.seed, rank, step)[:6], 16) / 2**40).hex()

    def digest(self, step: int) -> str:
        return sha(self.seed, "weights", step)

    def final(self, rank: int) -> dict[str, str]:
        names = ("model.0.weight", "model.0.bias", "optimizer.0.exp_avg", "optimizer.0.step")
        return {
            **{n: sha(self.seed, n) for n in names},
            "rng.torch": sha(self.seed, rank, "t"),
            "rng.generator": sha(self.seed, rank, "g"),
        }

    def _spec(self, slot: int, node: str) -> dict[str, Any]:
        chosen = self._commits.get(self.resume)
        resume = {k: chosen[k] for k in ("name", "step", "sha256")} | {"path": "p"} if chosen and self.epoch else None
        out = f"/bed/nodes/{node}/runs/{RUN}/i{self.nodes[node].ordinal}-e{self.epoch}"
        spec = {
            "run": RUN,
            "epoch": self.epoch,
            "world_size": 4,
            "nodes": 4,
            "group_rank": slot,
            "ranks": [slot],
            "out": out,
        }
        return spec | ({"resume": resume} if resume else {})

    def _open_files(self, rank: int) -> None:
        node = self.slots[rank]
        local = self.nodes[node]
        directory = f"nodes/{node}/i{local.ordinal}-e{self.epoch}"
        line = f"ccbed: run {RUN} node {node} incarnation {local.incarnation} epoch {self.epoch} rank {rank}\n"
        self.files.texts[f"{directory}/rank-{rank}.log"] = line
        for name in (f"steps-r{rank}.jsonl", f"chunks-r{rank}.bin", f"env-r{rank}.json"):
            self.files.texts[f"{directory}/{name}"] = ""

    # --- the result -------------------------------------------------------------------------------------------------------

    def run(self, twin: Twin | None = None) -> Run:
        extras = {
            "plan.json": {"run": RUN, "last_step": self.last_step, "slots": ["n0", "n1", "n2", "n3"], "spares": ["n4"]},
            "fingerprint.json": {"torch": "2.13.0"},
            "bundle.json": {"run": RUN},
        }
        return Run(
            directory="runs/x",
            trial=self.trial,
            history=History(tuple(self.events)),
            files=self.files,
            twin=twin,
            extras=extras,
        )


def act_of(fault: FaultPlan, node: str) -> Act:
    module = ACTS[fault.fault]
    plan: Act = module.plan(module.Params(**fault.params), Target(node=node, rank=None), HOST)
    return plan
