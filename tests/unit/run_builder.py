"""Synthetic runs for the tests of the reports: the reference failover, and runs that ended early."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import views
from orchestrator.model.event import Clock, Event, History, Source
from orchestrator.model.payload import EventType
from orchestrator.model.run import ChunkRecord, Run, StepRecord, Twin
from orchestrator.model.trial import FaultPlan, Trial, Trigger
from orchestrator.model.verdict import Verdict
from orchestrator.model.watch import WatchFile

RUN = "2026-11-21T02-00-07Z-dp-ring-3f9c"
WALL = 1795226407.0
NODES = ("n0", "n1", "n2", "n3", "n4")
PHASES = (
    ("detect", 0.004),
    ("stop", 0.009),
    ("node", 0.0),
    ("store", 0.022),
    ("join", 0.067),
    ("restore", 0.021),
    ("step", 0.035),
)


@dataclass(frozen=True)
class Files:
    """Node files in memory."""

    records: tuple[StepRecord, ...] = ()

    def steps(self) -> Iterator[StepRecord]:
        return iter(self.records)

    def chunks(self) -> Iterator[ChunkRecord]:
        return iter(())

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        return iter(())

    def watch(self) -> Iterator[WatchFile]:
        return iter(())

    def log(self, node: str, rank: int, epoch: int) -> str:
        return ""

    def paths(self) -> tuple[str, ...]:
        return ()

    def event_sources(self) -> Iterator[tuple[str, Source]]:
        return iter(())

    def read(self, path: str) -> bytes:
        return b""

    def sha256(self, path: str) -> str:
        return ""

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return iter(())


def trial() -> Trial:
    fault = FaultPlan(id="f0", fault="crash-node", node=2, at=Trigger(step=30))
    return Trial(name="dp-ring", workload="train-dp", params={"algorithm": "ring", "batch": 64}, faults=(fault,))


def loss(step: int, rank: int = 0) -> float:
    return 2.3 * math.exp(-step / 22) + 0.18 + 0.03 * math.sin(step * 1.7 + rank)


def history() -> History:
    lines: list[tuple[EventType, str, str | None, int | None, dict[str, Any], float]] = [
        ("note", "run.begin", None, None, {"run": RUN, "bed": "local", "pid": 7}, 0.0),
        ("note", "fault.planned", None, None, {"fault": "crash-node", "id": "f0"}, 0.001),
        ("invoke", "gang.start", "n0", 0, {}, 0.020),
        ("note", "gang.joined", None, 0, {}, 0.031),
        ("note", "rank.held", "n2", 0, {"rank": 2, "step": 30, "phase": "allreduce", "hold": "f0"}, 0.402),
        ("invoke", "fault.act", "n2", 0, {"fault": "f0"}, 0.403),
        ("note", "fault.injected", "n2", None, {"id": "f0"}, 0.403),
        ("note", "node.exit", "n2", 0, {"code": -9, "pid": 4133}, 0.407),
        ("ok", "fault.act", "n2", 0, {"verified": True}, 0.408),
        ("note", "progress", "n0", 0, {"step": 29}, 0.409),
        ("note", "recovery.decided", None, 1, {"lost": ["n2"], "policy": {"n2": "spare"}}, 0.416),
        ("note", "resume.chosen", None, 1, {"name": "e0-s25", "step": 25, "epoch": 0, "sha256": "6be0"}, 0.425),
        ("note", "gang.joined", None, 1, {}, 0.505),
        ("note", "run.end", None, None, {"outcome": "finished", "reason": "", "kind": ""}, 0.934),
    ]
    return History(tuple(_event(n, *line) for n, line in enumerate(lines, 1)))


def _event(
    n: int, kind: EventType, f: str, node: str | None, epoch: int | None, value: dict[str, Any], t: float
) -> Event:
    clock = Clock(boot="b", mono=100.0 + t, wall=WALL + t)
    source = Source(writer="ctl", n=n)
    return Event(type=kind, f=f, at=clock, source=source, seq=n, t=t, node=node, epoch=epoch, value=value)


def steps() -> tuple[StepRecord, ...]:
    spans = [(0, range(1, 30)), (1, range(26, 61))]
    return tuple(
        StepRecord(epoch=epoch, node=f"n{rank}", rank=rank, step=step, loss=loss(step, rank).hex(), start=0.0, end=0.0)
        for epoch, span in spans
        for step in span
        for rank in range(4)
    )


def twin() -> Twin:
    losses = {str(rank): {str(step): loss(step, rank).hex() for step in range(1, 61)} for rank in range(4)}
    return Twin(
        key="9d12aa00bb11cc22dd33",
        run="9d12",
        losses=losses,
        digests={},
        steps=60,
        faults=0,
        restarts=0,
        final_loss=0.3,
    )


def failover(**changes: Any) -> views.Failover:
    names = zip(views.MILESTONES, (0.0, *(sum(size for _, size in PHASES[: i + 1]) for i in range(7))), strict=True)
    points = tuple(views.Milestone(name=name, t=0.403 + t, seq=7) for name, t in names)
    entry = views.Failover(
        index=0,
        epoch=1,
        lost=("n2",),
        failed_ranks=(),
        detector="node.exit",
        fault="f0",
        policies={"n2": "spare"},
        milestones=points,
        phases=PHASES,
        ttr_s=0.158,
        detect_s=0.004,
        caught_up_s=0.237,
        resume_step=25,
        resume_name="e0-s25",
        newest_step=25,
        lost_steps=(26, 27, 28, 29),
        slots=("n0", "n1", "n4", "n3"),
    )
    return replace(entry, **changes)


def fault_view() -> views.FaultView:
    stages = {
        "planned": 0.001,
        "armed": 0.402,
        "injected": 0.403,
        "verified": 0.408,
        "healed": 1.1,
        "heal verified": 1.13,
    }
    return views.FaultView(id="f0", fault="crash-node", node="n2", rank=2, stages=stages)


def view(**changes: Any) -> views.RunView:
    observed = views.RunView(
        outcome="finished",
        reason="",
        kind="",
        step=60,
        steps=60,
        loss=0.3127,
        duration_s=0.934,
        epochs=2,
        slots=("n0", "n1", "n4", "n3"),
        failovers=(failover(),),
        faults=(fault_view(),),
        goodput=0.61,
    )
    return replace(observed, **changes)


def spans() -> tuple[views.Span, ...]:
    def span(node: str, kind: str, start: float, end: float, epoch: int | None = None, label: str = "") -> views.Span:
        return views.Span(node=node, kind=kind, start=start, end=end, epoch=epoch, label=label)

    alive = [
        entry
        for node in ("n0", "n1", "n3")
        for entry in (
            span(node, "start", 0.02, 0.031, 0, "epoch 0"),
            span(node, "run", 0.031, 0.414, 0, "epoch 0"),
            span(node, "idle", 0.414, 0.438),
            span(node, "start", 0.438, 0.505, 1, "epoch 1"),
            span(node, "run", 0.505, 0.93, 1, "epoch 1"),
        )
    ]
    lost = [
        span("n2", "start", 0.02, 0.031, 0, "epoch 0"),
        span("n2", "run", 0.031, 0.38, 0, "epoch 0"),
        span("n2", "held", 0.38, 0.403, 0, "held in allreduce of step 30"),
        span("n2", "dead", 0.407, 0.934, 0, "exit -9"),
    ]
    spare = [
        span("n4", "idle", 0.0, 0.438),
        span("n4", "start", 0.438, 0.505, 1, "epoch 1"),
        span("n4", "run", 0.505, 0.93, 1, "epoch 1"),
    ]
    return (*alive, *lost, *spare)


def verdicts() -> tuple[Verdict, ...]:
    def verdict(check: str, text: str, **evidence: Any) -> Verdict:
        return Verdict(check=check, outcome="pass", text=text, evidence=evidence)

    return (
        verdict("finished", "60 of 60 steps", steps=60, seq=14),
        verdict("fault-verified", "crash-node f0 proved: no process of n2 left", events=[7, 9]),
        verdict("planned-faults-only", "nothing was lost that no fault explains"),
        verdict("membership", "ranks 0..3 exactly once in each of 2 attempts", epochs=2),
        verdict("no-orphans", "no process left behind"),
        verdict("resumed-newest", "resumed 25 of 25 newest", resumed=25, newest=25),
        verdict("bit-exact", "26 tensors and RNG equal on 4 ranks; loss equal at 60/60 steps", tensors=26, ranks=4),
        verdict("detected-within", "4 ms, limit 2 s", seconds=0.004, limit=2.0, detector="node.exit"),
    )


def extras() -> dict[str, object]:
    return {
        "plan.json": {
            "bed": "local",
            "spares": ["n4"],
            "backend": "gloo",
            "run": RUN,
            "slots": [],
            "nodes": {},
            "policy": [],
            "payload": "",
            "checkpoints": "",
        },
        "fingerprint.json": {
            "torch": "2.13.0",
            "python": "3.11.7",
            "cpu": {"model": "Some CPU | 2 cores", "threads": 1},
        },
        "bundle.json": {"command": "ccbed run dp-ring --fail-node 2", "reason": "by hand", "format": 2},
    }


def run(**changes: Any) -> Run:
    entry = Run(
        directory=f"runs/{RUN}",
        trial=trial(),
        history=history(),
        files=Files(steps()),
        twin=twin(),
        extras=extras(),
        verdicts=verdicts(),
    )
    return replace(entry, **changes)
