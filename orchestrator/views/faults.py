"""Each planned fault and how far it got: the events of its operation, and the same as times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..model.event import Event, History
from ..model.trial import FaultPlan, Trial
from .clock import clock, listing, mapping, number, text
from .command_outcomes import Operation, operations
from .shapes import FaultView

#: The stages of a fault and the observation that proves each.
STAGES = {
    "planned": "fault.planned",
    "armed": "lease.armed",
    "injected": "fault.injected",
    "verified": "fault.verified",
    "healed": "fault.healed",
    "heal verified": "heal.verified",
}
#: From this format on a bundle says what held before an injection.
INSPECTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrace:
    """One planned fault and every event of the history that belongs to it, in journal order.

    ``inspects``: in this format the state to verify is observed before the injection.
    """

    plan: FaultPlan
    acts: tuple[Operation, ...]
    heals: tuple[Operation, ...]
    events: tuple[Event, ...]
    inspects: bool = True

    def of(self, name: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.f == name)

    def first(self, name: str) -> Event | None:
        return next((event for event in self.events if event.f == name), None)

    @property
    def node(self) -> str | None:
        """The node that the target resolved to; before that, the one that was named."""
        target = self.first("fault.target")
        if target is not None:
            return text(target.value.get("node")) or target.node
        return self.plan.node if isinstance(self.plan.node, str) else None

    @property
    def struck(self) -> Event | None:
        """The injection when it began: what a slow call breaks may be gone, and seen to be, long before the call returns."""
        injected = self.first("fault.injected")
        began = number(injected.value.get("began")) if injected else None
        if injected is None or began is None:
            return injected
        took = max(0.0, injected.at.mono - began)
        at = replace(injected.at, mono=injected.at.mono - took, wall=injected.at.wall - took)
        return replace(injected, at=at, t=injected.t - took)

    @property
    def held_before(self) -> bool | None:
        """Whether the state that verifies the fault held before the injection; None: not recorded, or not known."""
        states = [event.value.get("held") for event in self.of("fault.before")]
        return None if not all(isinstance(held, bool) for held in states) or not states else any(states)

    @property
    def changed(self) -> bool:
        """Whether the injection is shown to have changed something: verified, and not so before."""
        return self.first("fault.verified") is not None and not self.unchanged

    @property
    def unchanged(self) -> str:
        """Why its verification proves nothing; empty where it does. Bundles of format 1 have no ``fault.before``."""
        if self.held_before:
            return "the state to verify already held before the injection"
        if self.held_before is None and (self.inspects or self.of("fault.before")):
            return "it is not known whether the state to verify already held before the injection"
        return ""

    @property
    def _injects(self) -> list[Mapping[str, Any]]:
        """The primitives of its injection."""
        parts = (part for act in self.acts for part in listing(mapping(act.invoke.value.get("act")).get("inject")))
        return [mapping(part) for part in parts]

    @property
    def cuts_power(self) -> bool:
        """Whether it ends every process of its node, or of the node's host."""
        return "node" in self._powered_off or self.cuts_host

    @property
    def cuts_host(self) -> bool:
        """Whether it ends the node's host, its keeper included."""
        return "host" in self._powered_off

    @property
    def _powered_off(self) -> set[object]:
        power = [mapping(part.get("args")) for part in self._injects if part.get("kind") == "power"]
        return {args.get("of", "node") for args in power if args.get("state") == "off"}

    @property
    def pauses(self) -> bool:
        """Whether it stops its node for a time, rather than killing it."""
        kinds = {part.get("kind") for part in self._injects}
        return "pause" in kinds or (not kinds and self.plan.fault.startswith("pause"))


def traces(trial: Trial, history: History) -> tuple[FaultTrace, ...]:
    """The planned faults with their events."""
    acts = operations(history, "fault.act")
    heals = operations(history, "fault.heal")
    return tuple(_trace(plan, history, acts, heals) for plan in trial.faults)


def faults(trial: Trial, history: History) -> tuple[FaultView, ...]:
    """The planned faults with the time of each stage."""
    when = clock(history)
    found: list[FaultView] = []
    for trace in traces(trial, history):
        target, unreached = trace.first("fault.target"), trace.first("fault.unreached")
        rank = number(target.value.get("rank")) if target else None
        stages = {stage: trace.first(name) for stage, name in STAGES.items()}
        struck = trace.struck
        found.append(
            FaultView(
                id=trace.plan.id,
                fault=trace.plan.fault,
                node=trace.node,
                rank=None if rank is None else int(rank),
                stages={stage: when(event) if event else None for stage, event in stages.items()},
                struck=when(struck) if struck else None,
                exact=trace.plan.at.exact,
                unreached=str(unreached.value.get("reason", "")) or "not reached" if unreached else "",
            )
        )
    return tuple(found)


def fault_id(event: Event) -> str | None:
    """The fault that an event names: ``id`` in its value, else by its key (or a lease's key), ``f/<id>/…``."""
    named = text(event.value.get("id"))
    if named is not None:
        return named
    keys = (event.key, text(event.value.get("key")))
    return next((key.split("/")[1] for key in keys if key and key.startswith("f/")), None)


def _trace(plan: FaultPlan, history: History, acts: Iterable[Operation], heals: Iterable[Operation]) -> FaultTrace:
    own = tuple(act for act in acts if fault_id(act.invoke) == plan.id)
    undone = tuple(heal for heal in heals if fault_id(heal.invoke) == plan.id)
    keys = {act.key for act in (*own, *undone)}
    events = tuple(event for event in history.events if event.type == "note" and _belongs(event, plan.id, keys))
    return FaultTrace(plan=plan, acts=own, heals=undone, events=events, inspects=_format(history) >= INSPECTED)


def _format(history: History) -> int:
    """The format of the bundle as its run recorded it; 1 did not record any."""
    begin = history.first("run.begin")
    found = begin.value.get("format") if begin else None
    return found if isinstance(found, int) else 1


def _belongs(event: Event, plan: str, keys: set[str]) -> bool:
    if event.f.startswith("lease."):
        return text(event.value.get("key")) in keys or fault_id(event) == plan
    if event.f in ("rank.held", "rank.inside", "rank.released", "hold.expired"):
        return event.value.get("hold") == plan
    return event.f.startswith(("fault.", "heal.")) and event.value.get("id") == plan
