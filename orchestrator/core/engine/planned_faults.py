"""Planned faults in the engine: when they act, on which node, and when they are healed."""

from __future__ import annotations

from dataclasses import replace

from ...model.act import Act
from ...model.event import Clock, Command, Event, command
from ...model.events import (
    FaultAct,
    FaultHeal,
    FaultInjected,
    FaultPlanned,
    FaultTarget,
    FaultUnreached,
    RankHeld,
    RankInside,
    RankRelease,
)
from ...model.gang import Hold
from ...model.trial import INSIDE, FaultPlan, Trial
from .state import FaultStage, FaultState, Result, State, note, then, timer

#: How long a held fault waits for the other ranks to come inside the same collective.
INSIDE_S = 0.25


def planned(trial: Trial) -> tuple[Command, ...]:
    """One note per planned fault, before the first gang."""
    return tuple(
        note(FaultPlanned(id=f.id, fault=f.fault, node=f.node, trigger=_trigger(f)), f"f/{f.id}/planned")
        for f in trial.faults
    )


def holds(trial: Trial, state: State) -> tuple[Hold, ...]:
    """The holds of the epoch that is about to start: exact triggers whose fault has not acted yet."""
    found = []
    for fault in trial.faults:
        if not fault.at.exact or state.faults[fault.id].stage != "planned":
            continue
        slot = _slot(fault, state)
        if slot is None or fault.at.epoch not in (None, state.epoch):
            continue
        rank = slot * trial.world.ranks_per_node
        limit = trial.liveness.hold_s
        found.append(Hold(id=fault.id, rank=rank, step=fault.at.step or 0, phase=fault.at.phase, limit_s=limit))
    return tuple(found)


def after_start(trial: Trial, state: State) -> Result:
    """Every rank of an epoch has started, for the first time in this run: arm the timers of faults that act after a time."""
    if state.armed:
        return state, ()
    state = replace(state, armed=True)
    timed = [f for f in trial.faults if f.at.after_s is not None and f.at.on is None]
    return state, tuple(timer(f"f/{f.id}/after", f.at.after_s or 0.0) for f in timed)


def on_event(trial: Trial, state: State, event: Event) -> Result:
    """Faults that wait for an event of the history (``on``), each at its nth occurrence."""
    waiting = [f for f in trial.faults if f.at.on == event.f]
    if not waiting or event.type not in ("ok", "note"):
        return state, ()
    count = state.seen.get(event.f, 0) + 1
    result: Result = replace(state, seen={**state.seen, event.f: count}), ()
    for fault in waiting:
        if fault.at.nth == count:
            result = _follow(trial, result, fault)
    return result


def held(trial: Trial, state: State, event: Event[RankHeld]) -> Result:
    """A rank waits at a fault's point; act as soon as the others are there: inside the same collective, or held as well."""
    fault = state.faults.get(event.data.hold)
    if fault is None or fault.stage != "planned":
        return state, ()
    id, rank = event.data.hold, event.data.rank
    state = _set(state, id, replace(fault, stage="held", rank=rank))
    if _ready(trial, state, id):
        return _act_together(trial, state, id)
    return state, (timer(f"f/{id}/inside/e{state.epoch}", INSIDE_S),)


def inside(trial: Trial, state: State, event: Event[RankInside]) -> Result:
    """Another rank has passed the point at which a rank is (to be) held."""
    id = event.data.hold
    fault = state.faults.get(id)
    if fault is None or fault.stage not in ("planned", "held"):
        return state, ()
    state = _set(state, id, replace(fault, inside=fault.inside | {event.data.rank}))
    return _act_together(trial, state, id) if _ready(trial, state, id) else (state, ())


def act(trial: Trial, state: State, id: str) -> Result:
    """Resolve the target now and order the injection; a target that is not there is recorded as unreached."""
    plan = _plan(trial, id)
    name = _target(plan, state)
    if name is None or not state.nodes[name].alive:
        return unreached(state, id, f"target {plan.node} is not there")
    slot = state.slots.index(name) if name in state.slots else None
    hit = {one: state.nodes[one].incarnation for one in _reach(state, id, name)}
    state = _set(state, id, replace(state.faults[id], stage="acting", node=name, epoch=state.epoch, hit=hit))
    target = FaultTarget(id=id, asked=plan.node, node=name, rank=slot)
    resolved = note(target, f"f/{id}/target", of=name, epoch=state.epoch)
    act_value = state.plan.acts[id][name]
    order = command(
        FaultAct(id=id, fault=plan.fault, act=act_value), act_key(id), node=name, epoch=state.epoch,
        incarnation=state.nodes[name].incarnation, deadline_s=max(10.0, act_value.limit_s + 5.0),
    )  # fmt: skip
    return state, (resolved, order)


def acted(trial: Trial, state: State, event: Event) -> Result:
    """The injection answered: let the held rank go, and arm the healing if it has a time."""
    id, good = _id(event), event.type == "ok"
    fault = state.faults[id]
    if fault.stage != "acting":
        return state, ()
    state = settled(state, event)
    effect = state.plan.acts[id][fault.node]
    commands: tuple[Command, ...] = ()
    if fault.rank is not None and not (good and ends_node(effect)) and state.nodes[fault.node].alive:
        commands += (_release(state, id, fault.node, fault.rank),)
    if good and effect.heal_after_s is not None:
        left_s = max(0.0, effect.heal_after_s - _since(fault.injected, event.at))
        commands += (timer(f"f/{id}/heal-after", left_s),)
    return state, commands


def injected(state: State, event: Event[FaultInjected]) -> State:
    """From now on its time counts; the proof is a part of that."""
    id = event.data.id
    fault = state.faults.get(id)
    return _set(state, id, replace(fault, injected=event.at)) if fault and fault.stage == "acting" else state


def settled(state: State, event: Event) -> State:
    """The injection was shown, or it was not."""
    id, stage = _id(event), "acted" if event.type == "ok" else "failed"
    acting = state.faults[id].stage == "acting"
    return _set(state, id, replace(state.faults[id], stage=stage)) if acting else state  # type: ignore[arg-type]


def heal(state: State, id: str) -> Result:
    """Order the rollback of a fault that has acted."""
    fault = state.faults[id]
    plan_act = state.plan.acts[id][fault.node]
    state = _set(state, id, replace(fault, stage="healing", heals=fault.heals + 1))
    return state, (
        command(
            FaultHeal(id=id, act=plan_act), heal_key(state, id), node=fault.node, epoch=state.epoch,
            deadline_s=plan_act.limit_s + 5.0,
        ),
    )  # fmt: skip


def healed(state: State, event: Event) -> Result:
    fault = state.faults[_id(event)]
    return _set(state, _id(event), replace(fault, stage="healed" if event.type == "ok" else "failed")), ()


def fired(trial: Trial, state: State, event: Event) -> Result:
    """A timer of a fault: ``f/<id>/<what>``."""
    _, id, what, *epoch = str(event.key).split("/")
    fault = state.faults[id]
    if what == "after" and fault.stage == "planned":
        return act(trial, state, id)
    if what == "inside" and fault.stage == "held" and epoch == [f"e{state.epoch}"]:
        return _act_together(trial, state, id)
    if what == "heal-after" and fault.stage == "acted":
        return heal(state, id)
    return state, ()


def let_go(state: State) -> State:
    """The gang is being stopped: held ranks go with it, as do those inside; their faults wait for the next epoch."""
    waiting = with_stage(state, "planned", "held")
    back = {id: replace(state.faults[id], stage="planned", inside=frozenset()) for id in waiting}
    return replace(state, faults={**state.faults, **back})


def unreached(state: State, id: str, reason: str) -> Result:
    state = _set(state, id, replace(state.faults[id], stage="unreached"))
    return state, (note(FaultUnreached(id=id, reason=reason), f"f/{id}/unreached"),)


def with_stage(state: State, *stages: FaultStage) -> tuple[str, ...]:
    return tuple(id for id, fault in state.faults.items() if fault.stage in stages)


def act_key(id: str) -> str:
    return f"f/{id}/act"


def heal_key(state: State, id: str) -> str:
    """A rollback that failed is tried again under a key of its own: the answer to the first one is final."""
    count = state.faults[id].heals
    return f"f/{id}/heal" if count < 2 else f"f/{id}/heal/{count}"


def targets(state: State) -> frozenset[str]:
    """The nodes on which a fault was ordered to act, or that share the host which it took away."""
    return frozenset(name for fault in state.faults.values() for name in fault.hit)


def ended_attempt(trial: Trial, state: State) -> bool:
    """Whether planned faults ended this attempt: they hit every node that it lost, or, where it lost none, a failed rank's.

    A fault that was not proved ended nothing. One that acted in an earlier attempt counts until it is healed, and only for
    the same incarnation of a node.
    """
    acted = [state.faults[id] for id in with_stage(state, "acting", "acted", "healing", "healed")]
    now = {name for fault in acted if fault.epoch == state.epoch for name in fault.hit}
    lost = {name for name in state.slots if not state.usable(name)}
    if not lost:
        return any(state.slots[rank // trial.world.ranks_per_node] in now for rank in state.failed)
    same = {
        name for fault in acted if fault.stage != "healed"
        for name, incarnation in fault.hit.items() if state.nodes[name].incarnation == incarnation
    }  # fmt: skip
    return lost <= now | same


def unhealed(state: State) -> tuple[str, ...]:
    """What is still wrong with hosts, for people: a whole host that was not given back is not as `up` left it."""
    failed = [(id, state.faults[id].node) for id in with_stage(state, "failed")]
    return tuple(
        f"{id} on the host of {node} could not be healed" for id, node in failed if state.plan.acts[id][node].of_host
    )


def ends_node(act: Act) -> bool:
    """Whether the injection ends every process of the node."""
    off = (one.args.get("of", "node") for one in act.inject if one.kind == "power" and one.args.get("state") == "off")
    return any(of in ("node", "host") for of in off)


def _follow(trial: Trial, result: Result, fault: FaultPlan) -> Result:
    state, commands = result
    if state.faults[fault.id].stage != "planned":
        return result
    if fault.at.after_s:
        return state, (*commands, timer(f"f/{fault.id}/after", fault.at.after_s))
    state, more = act(trial, state, fault.id)
    return state, commands + more


def _release(state: State, id: str, node: str, rank: int) -> Command:
    return command(
        RankRelease(rank=rank, hold=id), f"f/{id}/release", node=node, incarnation=state.nodes[node].incarnation,
        epoch=state.epoch, deadline_s=3600.0,
    )  # fmt: skip


def _together(trial: Trial, state: State, id: str) -> tuple[str, ...]:
    """The faults that act with this one: those with the same trigger on other group ranks, each once."""
    own = _plan(trial, id)
    chosen = {_slot(own, state): id}
    for fault in trial.faults:
        if fault.at == own.at and state.faults[fault.id].stage in ("planned", "held"):
            chosen.setdefault(_slot(fault, state), fault.id)
    return tuple(chosen[slot] for slot in chosen if slot is not None)


def _ready(trial: Trial, state: State, id: str) -> bool:
    """All of them are held, and in the middle of a collective every other rank is inside."""
    faults = [state.faults[one] for one in _together(trial, state, id)]
    others = set(range(trial.world.size)) - {fault.rank for fault in faults}
    inside = _plan(trial, id).at.phase not in INSIDE or all(fault.inside >= others for fault in faults)
    return inside and all(fault.stage == "held" for fault in faults)


def _act_together(trial: Trial, state: State, id: str) -> Result:
    """Those that are held act; a rank that did not come in time is not waited for."""
    result: Result = state, ()
    for one in _together(trial, state, id):
        if state.faults[one].stage == "held":
            result = then(result, lambda s, one=one: act(trial, s, one))  # type: ignore[misc]
    return result


def _reach(state: State, id: str, node: str) -> tuple[str, ...]:
    """The nodes that a fault on this node hits: all of its host, where it takes the host away."""
    if not state.plan.acts[id][node].of_host:
        return (node,)
    return tuple(name for name in state.nodes if state.host(name) == state.host(node))


def _slot(fault: FaultPlan, state: State) -> int | None:
    if isinstance(fault.node, int):
        return fault.node if fault.node < len(state.slots) else None
    return state.slots.index(fault.node) if fault.node in state.slots else None


def _target(fault: FaultPlan, state: State) -> str | None:
    if isinstance(fault.node, str):
        return fault.node if fault.node in state.nodes else None
    return state.slots[fault.node] if fault.node < len(state.slots) else None


def _trigger(fault: FaultPlan) -> dict[str, object]:
    at = fault.at
    parts = {"step": at.step, "after_s": at.after_s, "on": at.on, "epoch": at.epoch, "exact": at.exact}
    phase = {"phase": at.phase} if at.exact else {}
    return {name: value for name, value in {**parts, **phase}.items() if value is not None}


def _plan(trial: Trial, id: str) -> FaultPlan:
    return next(fault for fault in trial.faults if fault.id == id)


def _since(then: Clock | None, now: Clock) -> float:
    """Seconds between two readings of one clock; none where it is not known to be one."""
    return max(0.0, now.mono - then.mono) if then and then.boot == now.boot else 0.0


def _id(event: Event) -> str:
    return str(event.key).split("/")[1]


def _set(state: State, id: str, fault: FaultState) -> State:
    return replace(state, faults={**state.faults, id: fault})
