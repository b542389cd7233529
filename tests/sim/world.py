"""A trial, a plan and a journal in memory around a FakeBed: what every simulation starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core import fold
from orchestrator.core.state import State
from orchestrator.loop import Loop
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Event, Source
from orchestrator.model.plan import Plan, PlanNode
from orchestrator.model.trial import FaultPlan, Recovery, Trial, Trigger, World
from orchestrator.providers.fake import FakeBed

CRASH = Act(
    inject=(Primitive(kind="power", args={"state": "off"}),),
    verify=(Primitive(kind="power", args={"state": "off"}),),
    heal=(Primitive(kind="power", args={"state": "on"}),),
    verify_heal=(Primitive(kind="power", args={"state": "on"}),),
    lease_s=120.0,
    safety="container",
    disables=("agent",),
)


def pause(for_s: float | None) -> Act:
    return replace(
        CRASH,
        inject=(Primitive(kind="pause", args={"state": "on"}),),
        verify=(Primitive(kind="pause", args={"state": "on"}),),
        heal=(Primitive(kind="pause", args={"state": "off"}),),
        verify_heal=(Primitive(kind="pause", args={"state": "off"}),),
        heal_after_s=for_s,
    )


class Killed(Exception):
    """The orchestrator dies here."""


@dataclass
class Memory:
    """A journal in memory; raises Killed once it holds ``limit`` events (the last one is written, nothing follows from it)."""

    events: list[Event] = field(default_factory=list)
    limit: int | None = None
    seen: set[tuple[str | None, str | None, str, int]] = field(default_factory=set)
    own: int = 0

    def append(self, event: Event) -> Event | None:
        if event.source.writer == "ctl":
            self.own += 1
            event = replace(event, source=Source(writer="ctl", n=self.own))
        if event.source.identity in self.seen:
            return None
        self.seen.add(event.source.identity)
        start = self.events[0].at.mono if self.events else event.at.mono
        placed = replace(event, seq=len(self.events) + 1, t=event.at.mono - start)
        self.events.append(placed)
        if self.limit is not None and len(self.events) >= self.limit:
            raise Killed
        return placed

    def sync(self) -> None: ...


def trial(*faults: FaultPlan, policy: tuple[str, ...] = ("spare", "restart"), **more: Any) -> Trial:
    recovery = Recovery(policy=policy, max_restarts=more.pop("max_restarts", 3))
    return Trial(name="dp-ring", workload="train-dp", faults=faults, recovery=recovery, world=World(nodes=4), **more)


def crash(node: int | str = 2, id: str = "f0", **at: Any) -> FaultPlan:
    return FaultPlan(id=id, fault="crash-node", node=node, at=Trigger(**(at or {"step": 30})))


def plan(trial: Trial, acts: Mapping[str, Act] | None = None) -> Plan:
    names = ("n0", "n1", "n2", "n3", "n4")
    nodes = {
        name: PlanNode(
            name=name, role="spare" if name == "n4" else "node", incarnation=f"{name}-1", ordinal=1, pid=1,
            address="127.0.0.1", interface="lo", directory=f"/nodes/{name}",
        )
        for name in names
    }  # fmt: skip
    chosen = {f.id: {name: (acts or {}).get(f.id, CRASH) for name in names} for f in trial.faults}
    return Plan(
        run="r", bed="fake", slots=names[:4], spares=names[4:], nodes=nodes, policy=trial.recovery.policy,
        backend="gloo", payload="payload", checkpoints="/shared/r/checkpoints", last_step=60, acts=chosen,
    )  # fmt: skip


def bed(**more: Any) -> FakeBed:
    return FakeBed(("n0", "n1", "n2", "n3", "n4"), **more)


def loop(trial: Trial, plan: Plan, bed: FakeBed, book: Memory, **more: Any) -> Loop:
    begin = Event(type="note", f="run.begin", at=bed.now(), source=Source(writer="ctl", n=0), value={"run": "r"})
    if not book.events:
        book.append(begin)
    return Loop(
        trial=trial, plan=plan, book=book, provider=bed, now=bed.now, look=bed.status, gather=dict, **more
    )  # fmt: skip


def wait(bed: FakeBed, for_s: float) -> None:
    """Let time pass without anybody listening."""
    end = bed.time + for_s
    while bed.time < end:
        bed.poll({"said": len(bed.said)}, end - bed.time)


def resume(trial: Trial, plan: Plan, bed: FakeBed, book: Memory) -> State:
    """A new orchestrator takes the run over; one that finds it ended leaves it alone."""
    if book.events[-1].f == "run.end":
        return fold.open_commands(trial, plan, book.events)[0]
    book.append(
        Event(
            type="note", f="run.resumed", at=bed.now(), source=Source(writer="ctl", n=0),
            value={"nodes": {n.name: {"incarnation": n.incarnation, "ordinal": n.ordinal} for n in bed.nodes.values() if n.alive}},
        )
    )  # fmt: skip
    return loop(trial, plan, bed, book).run()


def run(trial: Trial, bed: FakeBed, acts: Mapping[str, Act] | None = None) -> tuple[State, Memory]:
    book = Memory()
    return loop(trial, plan(trial, acts), bed, book).run(), book


def names(book: Memory, *fs: str) -> list[str]:
    return [event.f for event in book.events if not fs or event.f in fs]
