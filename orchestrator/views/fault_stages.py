"""Each planned fault and how far it got: the events of its operation, the time of each stage, and what contradicts its proof."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..model import events
from ..model.act import ENDING_SIGNALS, Act, Primitive
from ..model.event import Event, History
from ..model.frozen import dataclass, field, replace
from ..model.payload import Payload
from ..model.run import Run
from ..model.trial import FaultPlan, Trial
from .command_outcomes import Operation, operations
from .event_order import Clocks, clock
from .step_ranges import Steps

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
    events.FaultVerified, events.FaultLasted, events.FaultHealed, events.HealVerified,
)  # fmt: skip
_OF_HOLDS = (events.RankHeld, events.RankInside, events.RankReleased, events.HoldExpired)
#: States of processes in /proc.
_STOPPED = {"T", "t"}
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
        """Return whether the state that verifies the fault held before the injection; None: not recorded, or not known."""
        states = [event.data.held for event in self.of(events.FaultBefore)]
        return None if None in states or not states else any(states)

    @property
    def is_proved(self) -> bool:
        """Return whether the injection changed something: it was verified, and the verified state did not hold before."""
        return self.first(events.FaultVerified) is not None and not self.unproved_reason

    @property
    def unproved_reason(self) -> str:
        """Return why its verification proves nothing; empty where it does. Bundles of format 1 have no ``fault.before``."""
        if self.held_before:
            return "the state to verify already held before the injection"
        if self.held_before is None and (self.inspects or self.of(events.FaultBefore)):
            return "it is not known whether the state to verify already held before the injection"
        return ""

    @property
    def ordered(self) -> list[Act]:
        acts = (act.invoke.data.act for act in self.acts)
        return [act for act in acts if act is not None]

    @property
    def _injects(self) -> list[Primitive]:
        return [primitive for act in self.ordered for primitive in act.inject]

    @property
    def pauses_node(self) -> bool:
        """Return whether it stops every process of its node."""
        return any(item.kind == "pause" and item.args.get("state") == "on" for item in self._injects)

    @property
    def cuts_power(self) -> bool:
        """Return whether it ends every process of its node, or of the node's host."""
        return "node" in self._powered_off or self.cuts_host

    @property
    def cuts_host(self) -> bool:
        """Return whether it ends the node's host with its keeper."""
        return "host" in self._powered_off

    @property
    def _powered_off(self) -> set[object]:
        power = [primitive.args for primitive in self._injects if primitive.kind == "power"]
        return {args.get("of", "node") for args in power if args.get("state") == "off"}


def traces(trial: Trial, history: History) -> tuple[FaultTrace, ...]:
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


def contradictions(trace: FaultTrace) -> Iterator[tuple[str, Event]]:
    """Observations of a fault, and of its healing, that say something else than what they are said to prove."""
    for act in trace.ordered[-1:]:
        for kind, states in ((events.FaultVerified, act.verify), (events.HealVerified, act.verify_heal)):
            for event in trace.notes:
                if event.kind is kind:
                    yield from (
                        (text, event) for state in states if (text := _contradiction(state, event.data.evidence))
                    )


def _contradiction(state: Primitive, evidence: Any) -> str:
    fields = evidence if isinstance(evidence, Mapping) else {}
    is_on, kind, signal = state.args.get("state") in ("on", "up"), state.kind, state.args.get("signal")
    states = set(str(fields.get("state", "")).split(", ")) - {""}
    paused = fields.get("states")
    wrong = {
        "left": kind == "power" and not is_on and fields.get("left"),
        "up": kind == "power" and is_on and fields.get("up") is False,
        "paused": kind == "pause" and fields.get("paused") is (not is_on),
        "states": kind == "pause" and is_on and isinstance(paused, Mapping) and not set(paused.values()) <= _STOPPED,
        "eth0": kind == "link" and fields.get("eth0") == ("has no link" if is_on else "has a link"),
        "state": kind == "signal"
        and ((signal == "STOP" and not states <= _STOPPED) or (signal in ENDING_SIGNALS and not states <= {"gone"})),
    }
    return ", ".join(f"{name}: {fields[name]}" for name, is_wrong in wrong.items() if is_wrong and name in fields)


def signs_of_life(run: Run, trace: FaultTrace, times: Clocks) -> Iterator[tuple[str, Event | None]]:
    """Yield what a stopped rank, or a node whose processes are all stopped, did from the proof of the fault to its healing."""
    verified, lasted = trace.first(events.FaultVerified), trace.first(events.FaultLasted)
    end: Event[Any] | None = lasted or trace.first(events.FaultHealed)
    if verified is None or end is None or run.trial.params.get("launcher"):
        return
    # An engine thaws a container to kill it: what its processes do then is the recovery's doing.
    kills = (
        event for event in run.history.of(events.NodeKill) if event.node == trace.node and event.seq > verified.seq
    )
    until = next(kills, end)
    ranks = _stopped_ranks(run, trace, verified)
    own = [event for event in run.history.events if (event.node, event.epoch) == (trace.node, verified.epoch)]
    before = {event.source.incarnation for event in own if event.seq < verified.seq}
    for event in own if ranks or trace.pauses_node else ():
        is_hit = event.source.incarnation in before and _is_of_stopped(event, trace, ranks)
        if is_hit and times.before(verified, event) and times.before(event, end) and times.before(event, until):
            yield f"{event.source.writer} wrote {event.f}", event
    for rank, step, at in _steps(run, trace, verified) if ranks else ():
        if rank in ranks and verified.at.mono < at < end.at.mono:
            yield f"rank {rank} completed step {step}", None


def _is_of_stopped(event: Event, trace: FaultTrace, ranks: Collection[int]) -> bool:
    writer = event.source.writer
    is_of_rank = writer.startswith(("rank", "watch")) and getattr(event.data, "rank", None) in ranks
    return is_of_rank or (trace.pauses_node and writer == "agent")


def _stopped_ranks(run: Run, trace: FaultTrace, verified: Event) -> tuple[int, ...]:
    orders = [e for e in run.history.of(events.GangStart) if e.node == trace.node and e.epoch == verified.epoch]
    ranks = tuple(sorted(next((order.data.ranks or () for order in orders), ())))
    if trace.pauses_node:
        return ranks
    places = {place for act in trace.ordered for item in act.inject if (place := _place(item)) is not None}
    return tuple(rank for place, rank in enumerate(ranks) if place in places or "all" in places)


def _place(item: Primitive) -> Any:
    return item.args.get("local_rank") if item.args.get("signal") == "STOP" else None


def _steps(run: Run, trace: FaultTrace, verified: Event) -> Iterator[tuple[int, int, float]]:
    """Rank, number and end (CLOCK_MONOTONIC) of each step on the node in the attempt that the fault hit."""
    for record in run.files.steps():
        if (record.node, record.epoch) == (trace.node, verified.epoch):
            yield record.rank, record.step, record.end
    for file in run.files.watch():
        if (file.node, file.attempt) == (trace.node, verified.epoch):
            yield from ((file.rank, step.n, step.t) for step in Steps(file.lines).in_order())
