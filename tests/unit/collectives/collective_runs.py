"""Synthetic collective runs: histories, steps and chunk records as a bed would leave them, from simulated gangs."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.model import codec
from orchestrator.model.event import Clock, Event, History, Source
from orchestrator.model.payload import EventType
from orchestrator.model.run import Run, StepRecord
from orchestrator.model.trial import Trial, World
from orchestrator.model.verdict import Verdict
from orchestrator.store import bundle
from orchestrator.store.recorded_files import CHUNK_FORMAT

from .. import run_builder, simulated

RUN = "2026-11-21T09-12-44Z-allreduce-51ab"
WALL = 1795252364.0
RATE = 145e6
ALPHA, BETA = 50e-6, 8 / 140e6


@dataclass(kw_only=True)
class Part:
    """One case: how it is named in the plan, and the gang that carries it out."""

    operation: str
    algorithm: str
    bytes: int
    gang: simulated.Gang
    iterations: int = 8
    cost: tuple[float, float] | None = None
    recorded: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Files(run_builder.Files):
    """Node files in memory, with records of chunks."""

    blocks: tuple[tuple[str, int, int, bytes], ...] = ()

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        return iter(self.blocks)


@dataclass
class Bed:
    """Carries out the parts, those that differ in the algorithm alone in turn, and keeps what is left of them."""

    world: int = 4
    steps: list[StepRecord] = field(default_factory=list)
    blobs: dict[int, bytearray] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    now: float = 1000.0

    def carry_out(self, among: Sequence[Part]) -> None:
        first = self.step + 1
        for number in range(1, among[0].iterations + 1):
            for part in among:
                self.step, part.gang.now = self.step + 1, self.now
                self._keep(part.gang.trial(number), part.recorded)
                self.now = part.gang.now
        self.now += 0.05
        for place, part in enumerate(among):
            self.cases.append(self._case(part, first + place, len(among)))

    def _keep(self, trial: simulated.Trial, recorded: bool) -> None:
        for rank, (start, end) in sorted(trial.spans.items()):
            self.steps.append(
                StepRecord(
                    epoch=0, node=f"n{rank}", rank=rank, step=self.step, loss="0x0.0p+0", start=start, end=end,
                    gaps=trial.gaps[rank] if trial.gaps is not None else None,
                )
            )  # fmt: skip
        for rank, index, peer, chunk, size, start, end in trial.records if recorded else ():
            blob = self.blobs.setdefault(rank, bytearray())
            blob += struct.pack(CHUNK_FORMAT, self.step, 0, index, peer, chunk, size, start, end)

    def _case(self, part: Part, first: int, stride: int) -> dict[str, Any]:
        cost = {"rounds": part.cost[0], "volume": part.cost[1]} if part.cost else None
        return {
            "case": len(self.cases), "operation": part.operation, "algorithm": part.algorithm, "dtype": "float32",
            "operator": "sum", "bytes": part.bytes, "per_rank": part.bytes, "total": part.bytes, "count": part.bytes // 4,
            "root": 0, "groups": [list(range(self.world))], "first_step": first, "stride": stride,
            "iterations": part.iterations, "cost": cost, "asynchronous": False, "gap_ms": 0, **part.about,
        }  # fmt: skip


def run(
    parts: Sequence[Part], *, world: int = 4, over: str = "max_rank", name: str = "allreduce", probe: bool = True,
    rate: float | None = RATE, burst: int = 0, notes: Sequence[tuple[str, Mapping[str, Any]]] = (), drawn: Bed | None = None,
) -> Run:  # fmt: skip
    """The run that these parts leave. ``notes``: more observations of rank 0. ``drawn``: files made before."""
    bed = drawn or Bed(world=world)
    for _, among in itertools.groupby(parts, lambda part: (part.operation, part.bytes, part.iterations, part.about)):
        bed.carry_out(tuple(among))
    plan = {"cases": bed.cases, "over": over, "warmup": 5, "world": world, "drain": 0, "bandwidth": "mean"}
    nodes = [f"n{rank}" for rank in range(world)]
    lines: list[tuple[EventType, str, str | None, dict[str, Any], float]] = [
        ("note", "run.begin", None, {"run": RUN, "bed": "fabric", "pid": 7, "nodes": _nodes(nodes)}, 0.0),
        *(("invoke", "gang.start", node, _spec(rank, world), 0.02) for rank, node in enumerate(nodes)),
        ("note", "gang.joined", None, {}, 0.031),
    ]
    messages = [("collective.plan", plan), *(_probe(world) if probe else ()), *notes]
    lines += [("note", f, "n0", {"rank": 0, **value}, 0.05) for f, value in messages]
    end = bed.now - 1000.0
    for rank, node in enumerate(nodes):
        lines.append(("note", "rank.finished", node, {"rank": rank, "steps": bed.step, "metrics": {}}, end))
    lines.append(("note", "run.end", None, {"outcome": "finished", "reason": "", "kind": ""}, end + 0.01))
    link = {"rate": int(rate or 0), "burst": burst, "delay_s": 0.0, "loss": 0.0, "groups": 1, "uplink": 0}
    made = {"nodes": {}, "policy": [], "payload": "", "checkpoints": ""}
    extras = {
        "plan.json": {"run": RUN, "bed": "fabric", "slots": nodes, "spares": [], "backend": "gloo", **made,
                      "link": link if rate else None},
        "fingerprint.json": {"torch": "2.13.0", "python": "3.11.7", "cpu": {"model": "Some CPU", "count": 2}},
        "bundle.json": {"command": f"ccbed run {name}", "reason": "", "twin": False, "run": RUN, "format": 2},
    }  # fmt: skip
    files = Files(tuple(bed.steps), tuple((f"n{r}", r, 0, bytes(blob)) for r, blob in sorted(bed.blobs.items())))
    passed = (Verdict(check="results-exact", outcome="pass", text="all results exact, all ranks equal"),)
    return Run(
        directory=f"runs/{RUN}",
        trial=Trial(name=name, workload="collective", params={"sizes": "4K:1M"}, world=World(nodes=world)),
        history=History(tuple(_event(n, *line) for n, line in enumerate(lines, 1))),
        files=files,
        extras=extras,
        verdicts=passed,
    )


def write(entry: Run, directory: Path) -> Path:
    """The same as a bundle on disk."""
    files = entry.files
    assert isinstance(files, Files)
    directory.mkdir(parents=True)
    bundle.write_inputs(directory, {"trial.json": entry.trial, **entry.extras})
    text = "".join(json.dumps(codec.plain(event)) + "\n" for event in entry.history.events)
    (directory / "history.jsonl").write_text(text)
    for node, rank, epoch, blob in files.blocks:
        place = directory / "nodes" / node / f"i1-e{epoch}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"chunks-r{rank}.bin").write_bytes(blob)
    lines: dict[tuple[str, int], list[str]] = {}
    for record in files.records:
        line = {"step": record.step, "loss": record.loss, "start": record.start, "end": record.end, "digest": None}
        lines.setdefault((record.node, record.rank), []).append(json.dumps(line) + "\n")
    for (node, rank), content in lines.items():
        place = directory / "nodes" / node / "i1-e0"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"steps-r{rank}.jsonl").write_text("".join(content))
    return directory


def reference() -> Run:
    """All-reduce by two algorithms and the library, three sizes, 145 Mbit/s; rank 2 stopped once, for 0.9 s."""
    parts = []
    for size in (4096, 131072, 971048):
        stop = {5: (2, 0.021, 0.9)} if size == 971048 else {}
        parts += [
            Part(operation="all-reduce", algorithm="ring", bytes=size, iterations=20, cost=(6, 1.5),
                 gang=simulated.Gang(schedules=simulated.ring(4, size), stops=stop, seed=size)),
            Part(operation="all-reduce", algorithm="recursive-doubling", bytes=size, iterations=20, cost=(2, 2),
                 gang=simulated.Gang(schedules=simulated.doubling(4, size), seed=size + 1)),
            Part(operation="all-reduce", algorithm="library", bytes=size, iterations=20, recorded=False,
                 gang=simulated.Gang(schedules=simulated.ring(4, size), seed=size + 2)),
        ]  # fmt: skip
    return run(parts)


def figure(*, gather: bool = False) -> Run:
    """The figure of the origin: 4 ranks, 8 trials, rank 2 stopped for 4.5 s in one of them."""
    size = 6_438_912 if gather else 971_048
    schedules = simulated.ring(4, size, gather_only=gather)
    gang = simulated.Gang(schedules=schedules, stops={4: (2, 0.05, 4.5)}, buffered=4 << 20)
    operation, cost = ("all-gather", (3.0, 0.75)) if gather else ("all-reduce", (6.0, 1.5))
    part = Part(operation=operation, algorithm="ring", bytes=size, gang=gang, cost=cost)
    return run([part], name="seed-tp" if gather else "seed-dp")


def _nodes(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"incarnation": f"{name}a", "ordinal": 1, "pid": 40, "role": "node"} for name in names}


def _spec(rank: int, world: int) -> dict[str, Any]:
    about = {"run": RUN, "epoch": 0, "world_size": world, "nodes": world}
    return {**about, "group_rank": rank, "ranks": [rank], "out": "/x/i1-e0"}


def _probe(world: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for a, b in itertools.permutations(range(world), 2):
        alpha = ALPHA + 1e-6 * (a + b)
        samples = [[size, alpha + size * BETA, 20] for size in (4, 65536, 1048576)]
        fit = {"alpha_s": alpha, "beta_s_per_byte": BETA, "interval": [BETA * 0.996, BETA * 1.004], "samples": samples}
        yield "link.pair", {"rank": a, "peer": b, **fit, "trains": [BETA] * 8}
    yield "link.fit", {"rank": 0, "alpha_s": ALPHA, "beta_s_per_byte": BETA}


def _event(n: int, kind: EventType, f: str, node: str | None, value: dict[str, Any], t: float) -> Event:
    clock = Clock(boot="b", mono=1000.0 + t, wall=WALL + t)
    writer = "ctl" if node is None or f == "gang.start" else f"rank-{value.get('rank', 0)}.e0"
    key = f"e0/start/{node}" if f == "gang.start" else None
    return Event(
        type=kind, f=f, at=clock, source=Source(writer=writer, n=n, node=node if writer != "ctl" else None), seq=n, t=t,
        node=node, key=key, epoch=0 if node else None, value=value,
    )  # fmt: skip
