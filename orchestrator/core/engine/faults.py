"""Planned faults in the engine: when they are injected, on which node, and when they are healed."""

from __future__ import annotations

from dataclasses import replace

from ...model import events
from ...model.act import ENDING_SIGNALS, Act
from ...model.event import Clock, Command, Event, command
from ...model.gang import Hold
from ...model.trial import INSIDE, SAVE_PHASES, SCRIPT, STEP_PHASES, STEPS_LATER, THEIRS, FaultPlan, Trial
from .state import FaultStage, FaultState, Result, State, note, then, timer

#: The time for which a held fault waits for the other ranks to enter the same collective.
INSIDE_S = 0.25
#: After that, the time for which it waits for the targets of faults with the same trigger and, inside a collective, for a first
#: other rank; at most half the limit of the hold.
LATE_S = 5.0
#: Checkpoints of which other ranks may still report their part.
RECENT = 16


def planned_notes(trial: Trial) -> tuple[Command, ...]:
    """A note per planned fault, before the first gang."""
    return tuple(
        note(events.FaultPlanned(id=f.id, fault=f.fault, node=f.node, trigger=_trigger(f)), f"f/{f.id}/planned")
        for f in trial.faults
    )


def holds(trial: Trial, state: State) -> tuple[Hold, ...]:
    """The holds of the next attempt: exact triggers whose fault has not been injected yet."""
    due = []
    for fault in trial.faults:
        if not fault.at.exact or fault.at.after_save or state.faults[fault.id].stage != "planned":
            continue
        slot = _slot(fault, state)
        if slot is None or fault.at.epoch not in (None, state.epoch):
            continue
        rank = slot * trial.workers_per_node
        limit = trial.liveness.hold_s
        nth = fault.at.nth if fault.at.phase in SAVE_PHASES else None
        due.append(Hold(id=fault.id, rank=rank, step=fault.at.step or 0, phase=fault.at.phase, limit_s=limit, nth=nth))
    return tuple(due)


def saved(trial: Trial, state: State, event: Event[events.SaveCommitted]) -> Result:
    """A script committed a checkpoint: hold the targets of the faults that wait for it, some steps later.

    Several files of one step are one checkpoint, and so are those of ranks that do not step together. State that was saved before
    the first step proves nothing.
    """
    step, rank, epoch = event.data.n, event.data.rank, state.epoch
    if not step or _is_part_of_newest(state, step, rank):
        return state, ()
    state = replace(
        state, save_count=state.save_count + 1, newest_saves=(*state.newest_saves[1 - RECENT :], (epoch, step, rank))
    )
    waiting = [f for f in trial.faults if f.at.after_save and state.faults[f.id].stage == "planned"]
    due = [f for f in waiting if state.save_count >= (f.at.after_save or 0) and f.at.epoch in (None, epoch)]
    slots = [(fault, _slot(fault, state)) for fault in due]
    return state, tuple(
        order for fault, slot in slots if slot is not None for order in _holds_later(trial, state, fault, slot)
    )


def _is_part_of_newest(state: State, step: int, rank: int) -> bool:
    """Return whether a save belongs to a checkpoint that is known: of the same step, or of another rank soon after it."""
    known = [(at, saver) for epoch, at, saver in state.newest_saves if epoch == state.epoch]
    if any(at == step for at, _ in known) or not known:
        return bool(known)
    (last, saver), before = known[-1], known[-2][0] if len(known) > 1 else 0
    return saver != rank and abs(step - last) < (last - before) / 2


def _holds_later(trial: Trial, state: State, fault: FaultPlan, slot: int) -> tuple[Command, ...]:
    """Hold the first rank of the target some steps after the newest checkpoint; repeated orders have no further effect.

    Every node gets the order: the other ranks report that they wait for the held one.
    """
    saved_at = state.newest_saves[-1][1]
    order = events.RankHold(
        rank=slot * trial.workers_per_node,
        hold=fault.id,
        step=saved_at + _steps_later(fault, state),
        phase=fault.at.phase,
        limit_s=trial.liveness.hold_s,
        saved_at=saved_at,
        saves_every=_saves_every(state),
    )
    key = f"f/{fault.id}/hold/e{state.epoch}/s{saved_at}"
    return tuple(
        command(
            order, f"{key}/{node}", node=node, incarnation=state.nodes[node].incarnation, epoch=state.epoch,
            deadline_s=10.0,
        )
        for node in dict.fromkeys(state.slots) if state.usable(node)
    )  # fmt: skip


def _steps_later(fault: FaultPlan, state: State) -> int:
    """Return how long after the newest save a fault acts. Saves of one attempt show when the next one is due."""
    if fault.at.steps_later is not None:
        return fault.at.steps_later
    return max(0, min(STEPS_LATER, (_saves_every(state) or STEPS_LATER + 1) - 1))


def _saves_every(state: State) -> int | None:
    """Steps between the two newest checkpoints of this attempt; None before the second one, or if that is of an earlier step."""
    steps = [step for epoch, step, _ in state.newest_saves[-2:] if epoch == state.epoch]
    return steps[-1] - steps[-2] if len(steps) > 1 and steps[-1] > steps[-2] else None


def after_start(trial: Trial, state: State) -> Result:
    """Arm the timers of faults with a time when all ranks have started for the first time in this run."""
    if state.armed:
        return state, ()
    state = replace(state, armed=True)
    timed = [f for f in trial.faults if f.at.after_s is not None and f.at.on is None]
    return state, tuple(timer(f"f/{f.id}/after", f.at.after_s or 0.0) for f in timed)


def on_event(trial: Trial, state: State, event: Event) -> Result:
    """Inject faults that wait for the nth occurrence of an event (``on``)."""
    waiting = [f for f in trial.faults if f.at.on == event.f]
    if not waiting or event.type not in ("ok", "note"):
        return state, ()
    count = state.event_counts.get(event.f, 0) + 1
    result: Result = replace(state, event_counts={**state.event_counts, event.f: count}), ()
    for fault in waiting:
        if fault.at.nth == count:
            result = _trigger_fault(trial, result, fault)
    return result


def held(trial: Trial, state: State, event: Event[events.RankHeld]) -> Result:
    """A rank is held at a fault's point; inject as soon as the others are inside the same collective, or held as well."""
    fault = state.faults.get(event.data.hold)
    if fault is None or fault.stage != "planned":
        return state, ()
    id, rank = event.data.hold, event.data.rank
    state = _set(state, id, replace(fault, stage="held", rank=rank))
    if _ready(trial, state, id):
        return _act_together(trial, state, id)
    return state, (timer(f"f/{id}/inside/e{state.epoch}", INSIDE_S),)


def inside(trial: Trial, state: State, event: Event[events.RankInside]) -> Result:
    """Another rank has passed the point at which a rank is, or will be, held."""
    id = event.data.hold
    fault = state.faults.get(id)
    if fault is None or fault.stage not in ("planned", "held"):
        return state, ()
    state = _set(state, id, replace(fault, inside=fault.inside | {event.data.rank}))
    return _act_together(trial, state, id) if _ready(trial, state, id) else (state, ())


def act(trial: Trial, state: State, id: str) -> Result:
    """Resolve the target now and order the injection; a missing target is recorded as unreached."""
    plan = _plan(trial, id)
    name = _target(plan, state)
    if name is None or not state.nodes[name].alive:
        return unreached(state, id, f"target {plan.node} is not there")
    slot = state.slots.index(name) if name in state.slots else None
    hit = {node: state.nodes[node].incarnation for node in _reach(state, id, name)}
    state = _set(state, id, replace(state.faults[id], stage="acting", node=name, epoch=state.epoch, hit=hit))
    target = events.FaultTarget(id=id, asked=plan.node, node=name, rank=slot)
    resolved = note(target, f"f/{id}/target", of=name, epoch=state.epoch)
    act_value = state.plan.acts[id][name]
    order = command(
        events.FaultAct(id=id, fault=plan.fault, act=act_value), act_key(id), node=name, epoch=state.epoch,
        incarnation=state.nodes[name].incarnation, deadline_s=max(10.0, act_value.limit_s + 5.0),
    )  # fmt: skip
    return state, (resolved, order)


def acted(trial: Trial, state: State, event: Event) -> Result:
    """The injection responded: release the held rank, and arm the timer of healing."""
    id, good = _id(event), event.type == "ok"
    fault = state.faults[id]
    if fault.stage != "acting":
        return state, ()
    state = settled(state, event)
    effect = state.plan.acts[id][fault.node]
    commands: tuple[Command, ...] = ()
    if fault.rank is not None and not (good and ends_rank(effect)) and state.nodes[fault.node].alive:
        commands += (_release(state, id, fault.node, fault.rank),)
    if good and effect.heal_after_s is not None:
        left_s = max(0.0, effect.heal_after_s - _since(fault.injected, event.at))
        commands += (timer(f"f/{id}/heal-after", left_s),)
    return state, commands


def injected(state: State, event: Event[events.FaultInjected]) -> State:
    """The fault's time begins; its verification is part of it."""
    id = event.data.id
    fault = state.faults.get(id)
    return _set(state, id, replace(fault, injected=event.at)) if fault and fault.stage == "acting" else state


def settled(state: State, event: Event) -> State:
    """The injection was verified, or it failed."""
    id, stage = _id(event), "acted" if event.type == "ok" else "failed"
    acting = state.faults[id].stage == "acting"
    return _set(state, id, replace(state.faults[id], stage=stage)) if acting else state  # type: ignore[arg-type]


def heal(state: State, id: str) -> Result:
    """Order the healing of an injected fault."""
    fault = state.faults[id]
    plan_act = state.plan.acts[id][fault.node]
    state = _set(state, id, replace(fault, stage="healing", heals=fault.heals + 1))
    return state, (
        command(
            events.FaultHeal(id=id, act=plan_act), heal_key(state, id), node=fault.node, epoch=state.epoch,
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
    if what in ("inside", "late") and fault.stage == "held" and epoch == [f"e{state.epoch}"]:
        if what == "inside" and not (_all_held(trial, state, id) and _is_shared(trial, state, id)):
            return state, (timer(f"f/{id}/late/e{state.epoch}", min(LATE_S, trial.liveness.hold_s / 2)),)
        return _act_together(trial, state, id)
    if what == "heal-after" and fault.stage == "acted":
        return heal(state, id)
    return state, ()


def release_held(state: State) -> State:
    """The gang is being stopped together with held ranks; their faults wait for the next attempt."""
    waiting = with_stage(state, "planned", "held")
    back = {id: replace(state.faults[id], stage="planned", inside=frozenset()) for id in waiting}
    return replace(state, faults={**state.faults, **back})


def unreached(state: State, id: str, reason: str) -> Result:
    state = _set(state, id, replace(state.faults[id], stage="unreached"))
    return state, (note(events.FaultUnreached(id=id, reason=reason), f"f/{id}/unreached"),)


def why_unreached(trial: Trial, state: State, id: str) -> str:
    """Return why a planned fault has not acted when the run ends."""
    at, count = _plan(trial, id).at, state.save_count
    wanted = at.after_save
    if wanted and not count:
        return "the script saved no checkpoint after a step of an optimizer: nothing to prove"
    if wanted and count < wanted:
        saved = f"{count} {'was' if count == 1 else 'were'} saved"
        return f"it waits for checkpoint {wanted} of the script, and {saved}; save more often, or aim with --at step=5"
    if at.phase in SAVE_PHASES:
        return f"its rank did not reach {at.phase} {at.nth or 1}"
    return "the run ended before its trigger was reached"


def with_stage(state: State, *stages: FaultStage) -> tuple[str, ...]:
    return tuple(id for id, fault in state.faults.items() if fault.stage in stages)


def act_key(id: str) -> str:
    return f"f/{id}/act"


def heal_key(state: State, id: str) -> str:
    """A healing that failed is retried under a new key: the response to the first key is final."""
    count = state.faults[id].heals
    return f"f/{id}/heal" if count < 2 else f"f/{id}/heal/{count}"


def targets(state: State) -> frozenset[str]:
    """The target nodes of ordered faults, and nodes on a host that such a fault affects.

    A fault that hit ranks alone explains no loss of a node, and one that ended a node none of a later incarnation.
    """
    return frozenset(
        name for id, fault in state.faults.items() for name, incarnation in fault.hit.items()
        if _explains_loss(state.plan.acts[id][fault.node], is_same=state.nodes[name].incarnation == incarnation)
    )  # fmt: skip


def _explains_loss(act: Act, *, is_same: bool) -> bool:
    return not act.of_ranks and (is_same or act.of_host or not ends_node(act))


def ended_attempt(trial: Trial, state: State) -> bool:
    """Return whether planned faults ended this attempt: they hit every lost node, or, if none was lost, the node of a failed rank.

    A fault without verification ends no attempt. A fault of an earlier attempt counts until it is healed, and only for the
    same incarnation of a node.
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


def is_back(state: State, host: str) -> bool:
    """Return whether a fault that took this host away is healed: its keeper starts now."""
    return any(
        fault.stage == "healed" and state.plan.acts[id][fault.node].of_host and state.host(fault.node) == host
        for id, fault in state.faults.items()
    )


def unhealed(state: State) -> tuple[str, ...]:
    """Problems of hosts for the outcome: a host that could not be undone is not in the state that `up` left."""
    failed = [(id, state.faults[id].node) for id in with_stage(state, "failed")]
    return tuple(
        f"{id} on the host of {node} could not be undone" for id, node in failed if state.plan.acts[id][node].of_host
    )


def spinning_ranks(trial: Trial, state: State) -> frozenset[int]:
    """The ranks of this attempt that a fault lets spin: they use their CPU, and never make a step."""
    return frozenset(
        state.slots.index(fault.node) * trial.workers_per_node + item.args.get("local_rank", 0)
        for id, fault in state.faults.items()
        if fault.stage == "acted" and fault.epoch == state.epoch and fault.node in state.slots
        for item in state.plan.acts[id][fault.node].inject if item.args.get("do") == "spin"
    )  # fmt: skip


def ends_node(act: Act) -> bool:
    """Return whether the injection ends every process of the node."""
    off = (
        command.args.get("of", "node")
        for command in act.inject
        if command.kind == "power" and command.args.get("state") == "off"
    )
    return any(of in ("node", "host") for of in off)


def ends_rank(act: Act) -> bool:
    """Return whether the injection ends a rank, or every process of the node: no hold is left to release."""
    signals = [item.args for item in act.inject if item.kind == "signal" and "process" not in item.args]
    return ends_node(act) or any(args["signal"] in ENDING_SIGNALS for args in signals)


def _trigger_fault(trial: Trial, result: Result, fault: FaultPlan) -> Result:
    state, commands = result
    if state.faults[fault.id].stage != "planned":
        return result
    if fault.at.after_s:
        return state, (*commands, timer(f"f/{fault.id}/after", fault.at.after_s))
    state, more = act(trial, state, fault.id)
    return state, commands + more


def _release(state: State, id: str, node: str, rank: int) -> Command:
    return command(
        events.RankRelease(rank=rank, hold=id), f"f/{id}/release", node=node, incarnation=state.nodes[node].incarnation,
        epoch=state.epoch, deadline_s=3600.0,
    )  # fmt: skip


def _together(trial: Trial, state: State, id: str) -> tuple[str, ...]:
    """The faults that are injected together: those with the same trigger on other group ranks, without repetition."""
    own = _plan(trial, id)
    chosen = {_slot(own, state): id}
    for fault in trial.faults:
        if fault.at == own.at and state.faults[fault.id].stage in ("planned", "held"):
            chosen.setdefault(_slot(fault, state), fault.id)
    return tuple(chosen[slot] for slot in chosen if slot is not None)


def _all_held(trial: Trial, state: State, id: str) -> bool:
    return all(state.faults[fault_id].stage == "held" for fault_id in _together(trial, state, id))


def _is_shared(trial: Trial, state: State, id: str) -> bool:
    """Return whether another rank is inside the collective. Without one, no evidence shows that the fault acted during it."""
    return (
        _plan(trial, id).at.phase not in INSIDE or bool(state.faults[id].inside) or len(_together(trial, state, id)) > 1
    )


def _ready(trial: Trial, state: State, id: str) -> bool:
    """Return whether all of these faults are held, and, inside a collective or a script's step, every other rank waits for them."""
    if not _all_held(trial, state, id):
        return False
    faults = [state.faults[fault_id] for fault_id in _together(trial, state, id)]
    ranks = range(len(state.slots) * trial.workers_per_node)
    if _plan(trial, id).at.phase not in (INSIDE if trial.workload != SCRIPT else STEP_PHASES):
        return True
    if any(len(fault.inside) < len(ranks) - len(faults) for fault in faults):  # for speed, with thousands of ranks
        return False
    others = set(ranks) - {fault.rank for fault in faults}
    return all(fault.inside >= others for fault in faults)


def _act_together(trial: Trial, state: State, id: str) -> Result:
    """Inject the held faults; do not wait for a rank that is late."""
    result: Result = state, ()
    for fault_id in _together(trial, state, id):
        if state.faults[fault_id].stage == "held":
            result = then(result, lambda s, fault_id=fault_id: act(trial, s, fault_id))  # type: ignore[misc]
    return result


def _reach(state: State, id: str, node: str) -> tuple[str, ...]:
    """The nodes that a fault on this node affects: all nodes of the host, if the fault affects the host."""
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


def _trigger(fault: FaultPlan) -> dict[str, str | float | bool]:
    at = fault.at
    parts = {"step": at.step, "after_s": at.after_s, "on": at.on, "epoch": at.epoch, "exact": at.exact}
    parts |= {"after_save": at.after_save, "steps_later": at.steps_later}
    phase = {"phase": at.phase} if at.exact else {}
    return {name: value for name, value in {**parts, **phase}.items() if value is not None}


def _plan(trial: Trial, id: str) -> FaultPlan:
    return next(fault for fault in trial.faults if fault.id == id)


def _since(then: Clock | None, now: Clock) -> float:
    """Seconds between two readings of the same clock; 0 if the clocks differ."""
    return max(0.0, now.mono - then.mono) if then and then.boot == now.boot else 0.0


def _id(event: Event) -> str:
    return str(event.key).split("/")[1]


def _set(state: State, id: str, fault: FaultState) -> State:
    return replace(state, faults={**state.faults, id: fault})


def awaits_steps(trial: Trial, state: State) -> bool:
    """Return whether a fault that is not over, or the planned stop, depends on how far the ranks are."""
    current = ((fault, state.faults[fault.id]) for fault in trial.faults)
    return bool(trial.params.get("stop_at")) or any(
        not needs_no_heal(state, fault, now)
        if now.stage == "acted"
        else now.stage not in ("healed", "failed", "unreached")
        for fault, now in current
    )


def needs_no_heal(state: State, fault: FaultPlan, current: FaultState) -> bool:
    """A fault that ends its node is over with the next attempt, a fault with a time with its healing."""
    act = state.plan.acts[fault.id][current.node]
    if ends_node(act):
        return state.epoch > current.epoch or _is_replaced(state, current)
    return act.heal_after_s is None


def _is_replaced(state: State, fault: FaultState) -> bool:
    """Return whether the job's own launcher runs again on the node, or on another in its place."""
    is_new = fault.node not in state.slots or state.nodes[fault.node].incarnation != fault.hit.get(fault.node)
    return THEIRS in state.plan.policy and is_new and not state.vacant
