"""A trial, a plan and a journal in memory around a FakeBed: what every simulation starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.engine import fold
from orchestrator.core.engine.state import State
from orchestrator.faults import cut_link, power_off, stop_engine, stop_ssh
from orchestrator.model import codec
from orchestrator.model.act import Act, HostFacts, Primitive, Target
from orchestrator.model.event import Command, Event, Source
from orchestrator.model.plan import HostClock, Plan, PlanNode
from orchestrator.model.trial import FaultPlan, Recovery, Trial, Trigger, World
from orchestrator.run.loop import Loop

from ..fakes.fake import FakeBed

FAULTS: Mapping[str, Any] = {
    "cut-link": cut_link, "power-off": power_off, "stop-engine": stop_engine, "stop-ssh": stop_ssh,
}  # fmt: skip
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
    identities: set[tuple[str | None, str | None, str, int]] = field(default_factory=set)
    own: int = 0

    def append(self, event: Event) -> Event | None:
        if event.source.writer == "ctl":
            self.own += 1
            event = replace(event, source=Source(writer="ctl", n=self.own))
        if event.source.identity in self.identities:
            return None
        self.identities.add(event.source.identity)
        placed = replace(event, seq=len(self.events) + 1, t=self._seconds(event))
        self.events.append(placed)
        if self.limit is not None and len(self.events) >= self.limit:
            raise Killed
        return placed

    def sync(self) -> None: ...

    def _seconds(self, event: Event) -> float:
        """As a real journal has it: by the clock of the controller's boot, else by arrival."""
        if not self.events:
            return 0.0
        start = self.events[0].at
        return event.at.mono - start.mono if event.at.boot == start.boot else self.events[-1].t


def trial(*faults: FaultPlan, policy: tuple[str, ...] = ("spare", "restart"), **more: Any) -> Trial:
    recovery = Recovery(policy=policy, max_restarts=more.pop("max_restarts", 3))
    more.setdefault("workload", "train-dp")
    return Trial(name="dp-ring", faults=faults, recovery=recovery, world=World(nodes=4), **more)


def crash(node: int | str = 2, id: str = "f0", **at: Any) -> FaultPlan:
    return FaultPlan(id=id, fault="crash-node", node=node, at=Trigger(**(at or {"step": 30})))


#: Four hosts, each with a node and a standby of its own, and one with a spare; by name, so that nothing else orders them.
HOSTS = {
    "n0": "h0", "n1": "h1", "n2": "h2", "n3": "h3",
    "n4": "h0", "n5": "h1", "n6": "h2", "n7": "h3", "n8": "h4",
}  # fmt: skip
ONE_HOST = dict.fromkeys(("n0", "n1", "n2", "n3", "n4"), "here")


def plan(trial: Trial, acts: Mapping[str, Act] | None = None, hosts: Mapping[str, str] = ONE_HOST) -> Plan:
    names = tuple(hosts)
    nodes = {
        name: PlanNode(
            name=name, role="node" if name in names[:4] else "spare", incarnation=f"{name}-1", ordinal=1, pid=1,
            address="127.0.0.1", interface="lo", directory=f"/nodes/{name}", host=hosts[name],
        )
        for name in names
    }  # fmt: skip
    chosen = {f.id: {name: (acts or {}).get(f.id, CRASH) for name in names} for f in trial.faults}
    return Plan(
        run="r", bed="fake", slots=names[:4], spares=names[4:], nodes=nodes, policy=trial.recovery.policy,
        backend="gloo", payload="payload", checkpoints="/shared/r/checkpoints", last_step=60, acts=chosen,
    )  # fmt: skip


def bed(hosts: Mapping[str, str] = ONE_HOST, **more: Any) -> FakeBed:
    return FakeBed(tuple(hosts), hosts=hosts, **more)


def delay(bed: FakeBed, f: str, nodes: Mapping[str, float]) -> None:
    """The agents of these nodes respond to that command so many seconds late. Their heartbeats go on."""
    respond = bed.cluster.respond

    def respond_late(command: Command, *args: Any, **more: Any) -> None:
        late_s = nodes.get(str(command.node), 0.0) if command.f == f else 0.0
        bed.cluster.later(late_s, lambda: respond(command, *args, **more))

    bed.cluster.respond = respond_late  # type: ignore[method-assign]


def host_act(fault: str, **params: Any) -> Act:
    """What a fault of a whole host plans, on a host whose inventory offers everything."""
    module = FAULTS[fault]
    facts = HostFacts(name="h2", provider="docker", capabilities=frozenset({"cut-link"}))
    made: Act = module.plan(module.Params(**params), Target(node="n2", rank=2), facts)
    return made


def loop(trial: Trial, plan: Plan, bed: FakeBed, book: Memory, **more: Any) -> Loop:
    nodes = {
        node.name: {"incarnation": node.incarnation, "ordinal": 1, "pid": 1, "role": node.role, "host": node.host}
        for node in plan.nodes.values()
    }
    own = Source(writer="ctl", n=0)
    value = {"run": "r", "nodes": nodes, "clocks": codec.plain(plan.clocks)}
    begin = Event(type="note", f="run.begin", at=bed.now(), source=own, value=value)
    if not book.events:
        book.append(begin)
    return Loop(
        trial=trial, plan=plan, journal=book, provider=bed, now=bed.now, probe=bed.status, gather=dict, **more
    )  # fmt: skip


def wait(bed: FakeBed, for_s: float) -> None:
    """Let time pass without anybody listening."""
    end = bed.time + for_s
    while bed.time < end:
        bed.poll({"received": len(bed.received)}, end - bed.time)


def resume(trial: Trial, plan: Plan, bed: FakeBed, book: Memory) -> State:
    """A new orchestrator takes the run over; one that finds it ended leaves it alone."""
    if book.events[-1].f == "run.end":
        return fold.open_commands(trial, plan, book.events)[0]
    bed.cluster.restart_controller()
    book.append(
        Event(
            type="note", f="run.resumed", at=bed.now(), source=Source(writer="ctl", n=0),
            value={"nodes": _living_nodes(bed)},
        )
    )  # fmt: skip
    return loop(trial, plan, bed, book).run()


def run(
    trial: Trial,
    bed: FakeBed,
    acts: Mapping[str, Act] | None = None,
    clocks: Mapping[str, HostClock] | None = None,
) -> tuple[State, Memory]:
    book = Memory()
    hosts = {node.name: node.host for node in bed.nodes.values()}
    planned = replace(plan(trial, acts, hosts), clocks=clocks or {})
    return loop(trial, planned, bed, book).run(), book


def _living_nodes(bed: FakeBed) -> dict[str, dict[str, object]]:
    living = [n for n in bed.nodes.values() if bed.status(n.name).state in ("warm", "paused")]
    return {n.name: {"incarnation": n.incarnation, "ordinal": n.ordinal} for n in living}


def names(book: Memory, *fs: str) -> list[str]:
    return [event.f for event in book.events if not fs or event.f in fs]
