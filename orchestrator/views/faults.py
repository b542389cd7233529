"""Each planned fault and how far it got: the events of its operation, and the time of each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..model import events
from ..model.act import Primitive
from ..model.event import Event, History
from ..model.payload import Payload
from ..model.trial import FaultPlan, Trial
from .clock import clock
from .command_outcomes import Operation, operations

P = TypeVar("P", bound=Payload)

#: The stages of a fault and the observation that proves each.
STAGES: Mapping[str, type[Payload]] = {
    "planned": events.FaultPlanned,
    "armed": events.LeaseArmed,
    "injected": events.FaultInjected,
    "verified": events.FaultVerified,
    "healed": events.FaultHealed,
    "heal verified": events.HealVerified,
}
_OF_FAULTS = (
    events.FaultPlanned, events.FaultTarget, events.FaultUnreached, events.FaultBefore, events.FaultInjected,
    events.FaultVerified, events.FaultHealed, events.HealVerified,
)  # fmt: skip
_OF_HOLDS = (events.RankHeld, events.RankInside, events.RankReleased, events.HoldExpired)
#: From this format on a bundle says what held before an injection.
INSPECTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """A planned fault and how far it got: planned, armed, injected, verified, healed, heal verified (seconds or None).

    ``began``: when the call that injects began; ``injected`` is its return. ``step``: in which a rank of attempt 0 was held.
    """

    id: str
    fault: str
    node: str | None
    rank: int | None
    stages: Mapping[str, float | None] = field(default_factory=dict)
    began: float | None = None
    exact: bool = True
    unreached: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrace:
    """One planned fault and every event of the history that belongs to it, in journal order.

    ``inspects``: in this format the state to verify is observed before the injection.
    """

    plan: FaultPlan
    acts: tuple[Operation, ...]
    heals: tuple[Operation, ...]
    notes: tuple[Event, ...]
    inspects: bool = True

    def of(self, kind: type[P]) -> tuple[Event[P], ...]:
        return tuple(event for event in self.notes if event.f == kind.NAME)

    def first(self, kind: type[P]) -> Event[P] | None:
        return next((event for event in self.notes if event.f == kind.NAME), None)

    @property
    def node(self) -> str | None:
        """The resolved target; before that, the node that the trial names."""
        target = self.first(events.FaultTarget)
        if target is not None:
            return target.data.node or target.node
        return self.plan.node if isinstance(self.plan.node, str) else None

    @property
    def began(self) -> Event[events.FaultInjected] | None:
        """The injection, at the time when its call began: a slow call may break something long before it returns."""
        injected = self.first(events.FaultInjected)
        began = injected.data.began if injected else None
        if injected is None or began is None:
            return injected
        took = max(0.0, injected.at.mono - began)
        at = replace(injected.at, mono=injected.at.mono - took, wall=injected.at.wall - took)
        return replace(injected, at=at, t=injected.t - took)

    @property
    def held_before(self) -> bool | None:
        """Whether the state that verifies the fault held before the injection; None: not recorded, or not known."""
        states = [event.data.held for event in self.of(events.FaultBefore)]
        return None if None in states or not states else any(states)

    @property
    def is_proved(self) -> bool:
        """Whether the injection changed something: it was verified, and the verified state did not hold before."""
        return self.first(events.FaultVerified) is not None and not self.unproved_reason

    @property
    def unproved_reason(self) -> str:
        """Why its verification proves nothing; empty where it does. Bundles of format 1 have no ``fault.before``."""
        if self.held_before:
            return "the state to verify already held before the injection"
        if self.held_before is None and (self.inspects or self.of(events.FaultBefore)):
            return "it is not known whether the state to verify already held before the injection"
        return ""

    @property
    def _injects(self) -> list[Primitive]:
        """The primitives of its injection."""
        acts = (act.invoke.data.act for act in self.acts)
        return [primitive for act in acts if act is not None for primitive in act.inject]

    @property
    def cuts_power(self) -> bool:
        """Whether it ends every process of its node, or of the node's host."""
        return "node" in self._powered_off or self.cuts_host

    @property
    def cuts_host(self) -> bool:
        """Whether it ends the node's host with its keeper."""
        return "host" in self._powered_off

    @property
    def _powered_off(self) -> set[object]:
        power = [primitive.args for primitive in self._injects if primitive.kind == "power"]
        return {args.get("of", "node") for args in power if args.get("state") == "off"}


def traces(trial: Trial, history: History) -> tuple[FaultTrace, ...]:
    """The planned faults with their events."""
    acts = operations(history, events.FaultAct)
    heals = operations(history, events.FaultHeal)
    return tuple(_trace(plan, history, acts, heals) for plan in trial.faults)


def faults(trial: Trial, history: History) -> tuple[FaultView, ...]:
    """The planned faults with the time of each stage."""
    when = clock(history)
    return tuple(_view(trace, when) for trace in traces(trial, history))


def _view(trace: FaultTrace, when: Callable[[Event], float]) -> FaultView:
    target, unreached = trace.first(events.FaultTarget), trace.first(events.FaultUnreached)
    held = next((event for event in trace.of(events.RankHeld) if not event.epoch), None)
    stages = {stage: trace.first(kind) for stage, kind in STAGES.items()}
    return FaultView(
        id=trace.plan.id,
        fault=trace.plan.fault,
        node=trace.node,
        rank=target.data.rank if target else None,
        stages={stage: when(event) if event else None for stage, event in stages.items()},
        began=when(trace.began) if trace.began else None,
        exact=trace.plan.at.exact and all(event.data.exact is not False for event in trace.of(events.RankHeld)),
        unreached=(unreached.data.reason or "not reached") if unreached else "",
        step=held.data.step if held else None,
    )


def _trace(plan: FaultPlan, history: History, acts: Iterable[Operation], heals: Iterable[Operation]) -> FaultTrace:
    own_acts = tuple(act for act in acts if _fault_id(act) == plan.id)
    own_heals = tuple(heal for heal in heals if _fault_id(heal) == plan.id)
    keys = {operation.key for operation in (*own_acts, *own_heals)}
    notes = tuple(event for event in history.events if event.type == "note" and _belongs(event, plan.id, keys))
    return FaultTrace(plan=plan, acts=own_acts, heals=own_heals, notes=notes, inspects=_format(history) >= INSPECTED)


def _fault_id(operation: Operation) -> str | None:
    """The fault that a command names in its value, or in its key ``f/<id>/…``."""
    return operation.invoke.data.id or _id_of_key(operation.key)


def _id_of_key(key: str | None) -> str | None:
    return key.split("/")[1] if key and key.startswith("f/") else None


def _format(history: History) -> int:
    """The format of the bundle as its run recorded it; format 1 did not record it."""
    begin = history.first(events.RunBegin)
    return (begin.data.format if begin else None) or 1


def _belongs(event: Event, plan: str, keys: set[str]) -> bool:
    if event.kind in (events.LeaseArmed, events.LeaseOver):
        return event.data.key in keys or plan in (_id_of_key(event.key), _id_of_key(event.data.key))
    if event.kind in _OF_HOLDS:
        return bool(event.data.hold == plan)
    return event.kind in _OF_FAULTS and event.data.id == plan
