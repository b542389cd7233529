"""Synthetic runs for tests of views and checkers, and ways to spoil them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from orchestrator.model.event import Event, History
from orchestrator.model.run import Run, StepRecord, Twin
from orchestrator.model.trial import FaultPlan, Recovery, Trial, Trigger

from .synthetic import BOOT, RUN, START, Bed, Files

__all__ = ["BOOT", "RUN", "START", "Bed", "Files"]


def trial(*faults: FaultPlan, seed: int = 7, workload: str = "train-dp") -> Trial:
    return Trial(name="dp-ring", workload=workload, faults=faults, recovery=Recovery(), seed=seed)


def crash_at(step: int, node: int | str = 2, id: str = "f0") -> FaultPlan:
    return FaultPlan(id=id, fault="crash-node", node=node, at=Trigger(step=step))


def clean(seed: int = 7) -> Run:
    """A run in which nothing happens: what a twin is made of."""
    bed = Bed(trial=trial(seed=seed))
    bed.begin()
    bed.start()
    bed.train(60)
    bed.finish()
    return bed.run()


def twin(seed: int = 7, **change: Any) -> Twin:
    """The twin of ``reference``."""
    bed = Bed(trial=trial(seed=seed))
    losses = {str(rank): {str(step): bed.loss(rank, step) for step in range(1, 61)} for rank in range(4)}
    digests = {str(rank): bed.final(rank) for rank in range(4)}
    made = Twin(key="k", run="9d12", losses=losses, digests=digests, steps=60, faults=0, restarts=0, final_loss=0.3)
    return dataclasses.replace(made, **change)


def bed_at_fault(policy: str = "spare", resume: int = 25) -> Bed:
    """n2 was killed in step 30 and its rank is back on n4 (or on n2 again), from checkpoint 25."""
    fault = crash_at(30)
    bed = Bed(trial=trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.crash(fault)
    bed.stop(lost=["n2"])
    bed.recover("n2", policy, resume)
    return bed


def reference(policy: str = "spare", resume: int = 25) -> Run:
    """The reference: four nodes and a spare, n2 killed inside the all-reduce of step 30, epoch 1 resumes from 25."""
    bed = bed_at_fault(policy, resume)
    bed.train(60)
    bed.finish(heal=["n2"] if policy == "spare" else [])
    return bed.run(twin())


def twice() -> Run:
    """Two faults in a row: n2 at step 30 (spare n4), then group rank 2 again, which is n4, at step 43 (restart)."""
    first, second = crash_at(30, id="f0"), crash_at(43, id="f1")
    bed = Bed(trial=trial(first, second))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.crash(first)
    bed.stop(lost=["n2"])
    bed.recover("n2", "spare", 25)
    bed.train(42)
    bed.crash(second)
    bed.stop(lost=["n4"])
    bed.recover("n4", "restart", 40)
    bed.train(60)
    bed.finish(heal=["n2"])
    return bed.run(twin())


def acted(fault: FaultPlan) -> Bed:
    """A bed whose fault was injected on n1 at step 30, and verified."""
    bed = Bed(trial=trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.act(fault)
    bed.say("keeper", "fault.verified", {"id": fault.id}, node="n1", epoch=0)
    bed.answer("keeper", "fault.act", f"f/{fault.id}/act", "n1", {"verified": True})
    return bed


def paused() -> Run:
    """n1 is stopped at step 30 for good and falls silent; it is killed and started again, and healed when the run ends."""
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = Bed(trial=trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.act(fault)
    bed.say("keeper", "fault.verified", {"id": "f0", "evidence": {"stopped": 3}}, node="n1", epoch=0)
    bed.answer("keeper", "fault.act", "f/f0/act", "n1", {"verified": True})
    bed.ask("rank.release", "f/f0/release", "n1", {"rank": 1, "hold": "f0"})
    bed.now += 0.9
    bed.ctl("node.suspect", {"silent_s": 0.9}, node="n1")
    bed.now += 0.9
    bed.ctl("node.silent", {"silent_s": 1.8, "seen": "paused"}, node="n1")
    bed.stop(lost=["n1"])
    bed.recover("n1", "restart", 25, detector="node.silent")
    bed.train(60)
    bed.finish()
    return bed.run(twin())


def with_events(run: Run, events: Sequence[Event], *, number: bool = True) -> Run:
    """The run with another history; ``number``: numbered as a journal would number what reached it."""
    placed = [dataclasses.replace(e, seq=i) for i, e in enumerate(events, start=1)] if number else events
    return dataclasses.replace(run, history=History(tuple(placed)))


def prefix(run: Run, length: int) -> Run:
    return with_events(run, run.history.events[:length])


def changed(run: Run, f: str, nth: int = 0, **fields: Any) -> Run:
    """The run with fields of the nth event called ``f`` replaced; ``value`` is merged into."""
    events = list(run.history.events)
    index = [i for i, e in enumerate(events) if e.f == f][nth]
    if "value" in fields:
        fields["value"] = {**events[index].value, **fields["value"]}
    events[index] = dataclasses.replace(events[index], **fields)
    return with_events(run, events)


def without(run: Run, f: str, nth: int | None = None) -> Run:
    """The run without the events called ``f``, or without the nth of them."""
    hits = [i for i, e in enumerate(run.history.events) if e.f == f]
    gone = set(hits if nth is None else [hits[nth]])
    return with_events(run, [e for i, e in enumerate(run.history.events) if i not in gone])


def with_records(run: Run, records: Sequence[StepRecord]) -> Run:
    files = Files(records=list(records), texts=dict(run.files.texts))  # type: ignore[attr-defined]
    return dataclasses.replace(run, files=files)
