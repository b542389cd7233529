"""Each planned fault and how far it got: the events of its operation, and the same as times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..model.act import Primitive
from ..model.event import Event, History, Q
from ..model.events import (
    FaultAct,
    FaultBefore,
    FaultHeal,
    FaultHealed,
    FaultInjected,
    FaultPlanned,
    FaultTarget,
    FaultUnreached,
    FaultVerified,
    HealVerified,
    HoldExpired,
    LeaseArmed,
    LeaseOver,
    RankHeld,
    RankInside,
    RankReleased,
    RunBegin,
)
from ..model.payload import Payload
from ..model.trial import FaultPlan, Trial
from .clock import clock
from .command_outcomes import Operation, operations
from .shapes import FaultView

#: The stages of a fault and the observation that proves each.
STAGES: Mapping[str, type[Payload]] = {
    "planned": FaultPlanned,
    "armed": LeaseArmed,
    "injected": FaultInjected,
    "verified": FaultVerified,
    "healed": FaultHealed,
    "heal verified": HealVerified,
}
_OF_HOLDS = (RankHeld, RankInside, RankReleased, HoldExpired)
#: From this format on a bundle says what held before an injection.
INSPECTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrace:
    """One planned fault and every event of the history that belongs to it, in journal order.

    ``inspects``: in this format the state to verify is observed before the injection.
    """

    plan: FaultPlan
    acts: tuple[Operation[FaultAct], ...]
    heals: tuple[Operation[FaultHeal], ...]
    events: tuple[Event, ...]
    inspects: bool = True

    def of(self, kind: type[Q]) -> tuple[Event[Q], ...]:
        return tuple(event for event in self.events if event.kind is kind)

    def first(self, kind: type[Q]) -> Event[Q] | None:
        return next((event for event in self.events if event.kind is kind), None)

    @property
    def node(self) -> str | None:
        """The node that the target resolved to; before that, the one that was named."""
        target = self.first(FaultTarget)
        if target is not None:
            return target.data.node or target.node
        return self.plan.node if isinstance(self.plan.node, str) else None

    @property
    def struck(self) -> Event[FaultInjected] | None:
        """The injection when it began: what a slow call breaks may be gone, and seen to be, long before the call returns."""
        injected = self.first(FaultInjected)
        began = injected.data.began if injected else None
        if injected is None or began is None:
            return injected
        took = max(0.0, injected.at.mono - began)
        at = replace(injected.at, mono=injected.at.mono - took, wall=injected.at.wall - took)
        return replace(injected, at=at, t=injected.t - took)

    @property
    def held_before(self) -> bool | None:
        """Whether the state that verifies the fault held before the injection; None: not recorded, or not known."""
        states = [event.data.held for event in self.of(FaultBefore)]
        return None if not states or None in states else any(states)

    @property
    def changed(self) -> bool:
        """Whether the injection is shown to have changed something: verified, and not so before."""
        return self.first(FaultVerified) is not None and not self.unchanged

    @property
    def unchanged(self) -> str:
        """Why its verification proves nothing; empty where it does. Bundles of format 1 have no ``fault.before``."""
        if self.held_before:
            return "the state to verify already held before the injection"
        if self.held_before is None and (self.inspects or self.of(FaultBefore)):
            return "it is not known whether the state to verify already held before the injection"
        return ""

    @property
    def _injects(self) -> list[Primitive]:
        """The primitives of its injection."""
        acts = (order.invoke.data.act for order in self.acts)
        return [primitive for act in acts if act is not None for primitive in act.inject]

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
        power = [primitive.args for primitive in self._injects if primitive.kind == "power"]
        return {args.get("of", "node") for args in power if args.get("state") == "off"}

    @property
    def pauses(self) -> bool:
        """Whether it stops its node for a time, rather than killing it."""
        kinds = {primitive.kind for primitive in self._injects}
        return "pause" in kinds or (not kinds and self.plan.fault.startswith("pause"))


def traces(trial: Trial, history: History) -> tuple[FaultTrace, ...]:
    """The planned faults with their events."""
    acts = operations(history, FaultAct)
    heals = operations(history, FaultHeal)
    return tuple(_trace(plan, history, acts, heals) for plan in trial.faults)


def faults(trial: Trial, history: History) -> tuple[FaultView, ...]:
    """The planned faults with the time of each stage."""
    when = clock(history)
    found: list[FaultView] = []
    for trace in traces(trial, history):
        target, unreached = trace.first(FaultTarget), trace.first(FaultUnreached)
        rank = target.data.rank if target else None
        stages = {stage: trace.first(kind) for stage, kind in STAGES.items()}
        struck = trace.struck
        found.append(
            FaultView(
                id=trace.plan.id,
                fault=trace.plan.fault,
                node=trace.node,
                rank=rank,
                stages={stage: when(event) if event else None for stage, event in stages.items()},
                struck=when(struck) if struck else None,
                exact=trace.plan.at.exact,
                unreached=unreached.data.reason or "not reached" if unreached else "",
            )
        )
    return tuple(found)


def fault_id(event: Event) -> str | None:
    """The fault that an event names: ``id`` in its value, else by its key (or a lease's key), ``f/<id>/…``."""
    named: str | None = getattr(event.data, "id", None)
    if named is not None:
        return named
    keys = (event.key, getattr(event.data, "key", None))
    return next((key.split("/")[1] for key in keys if key and key.startswith("f/")), None)


def _trace(
    plan: FaultPlan, history: History, acts: Iterable[Operation[FaultAct]], heals: Iterable[Operation[FaultHeal]]
) -> FaultTrace:
    own = tuple(act for act in acts if fault_id(act.invoke) == plan.id)
    undone = tuple(heal for heal in heals if fault_id(heal.invoke) == plan.id)
    keys = {act.key for act in (*own, *undone)}
    events = tuple(event for event in history.events if event.type == "note" and _belongs(event, plan.id, keys))
    return FaultTrace(plan=plan, acts=own, heals=undone, events=events, inspects=_format(history) >= INSPECTED)


def _format(history: History) -> int:
    """The format of the bundle as its run recorded it; 1 did not record any."""
    begin = history.first(RunBegin)
    stated = begin.data.format if begin else None
    return 1 if stated is None else stated


def _belongs(event: Event, plan: str, keys: set[str]) -> bool:
    if event.kind in (LeaseArmed, LeaseOver):
        return event.data.key in keys or fault_id(event) == plan
    if event.kind in _OF_HOLDS:
        return bool(event.data.hold == plan)
    return event.f.startswith(("fault.", "heal.")) and getattr(event.data, "id", None) == plan
