"""What follows from each event of a run: ``begin`` and ``step``, pure. The life of an epoch, read top-down.

prepare (fence, checkpoint, store, nodes) -> start (fork, join) -> run -> close, or on the first abnormal event:
stop the gang -> settle: wait for every node's answer, exit or silence -> only then decide -> prepare the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..model.event import Command, Event
from ..model.plan import Plan
from ..model.trial import Trial
from . import closing, faulting, gangs, recovery
from .state import Ending, FaultState, Node, Result, State, forged, note, reached, then, timer

Handler = Callable[[Trial, State, Event], Result]


def begin(trial: Trial, plan: Plan) -> Result:
    """The first state and commands of a run."""
    state = State(
        plan=plan,
        stage="prepare",
        slots=plan.slots,
        spares=plan.spares,
        nodes={n.name: Node(incarnation=n.incarnation, ordinal=n.ordinal) for n in plan.nodes.values()},
        faults={fault.id: FaultState() for fault in trial.faults},
    )
    opening = (*faulting.planned(trial), _wall(trial, state))
    return then((state, opening), lambda s: gangs.prepare(trial, s))


def step(trial: Trial, state: State, event: Event) -> Result:
    """The state after ``event`` and the commands that follow from it. Unknown and late events change nothing."""
    if state.stage == "done" or event.type == "invoke" or forged(event):
        return state, ()
    handler = _OBSERVATIONS.get(event.f) if event.type == "note" else _OUTCOMES.get(event.f)
    result: Result = handler(trial, state, event) if handler else (state, ())
    if result[0].over or result[0].ending:
        return result
    return then(result, lambda s: faulting.on_event(trial, s, event))


# --- the gang ---------------------------------------------------------------------------------------------------------


def _rank_started(trial: Trial, state: State, event: Event) -> Result:
    if not _current(state, event):
        return state, ()
    state = replace(state, started=state.started | {int(event.value["rank"])})
    return faulting.after_start(trial, state) if len(state.started) == trial.world.size else (state, ())


def _rank_joined(trial: Trial, state: State, event: Event) -> Result:
    if not _current(state, event):
        return state, ()
    state = replace(state, joined=state.joined | {int(event.value["rank"])})
    if len(state.joined) < trial.world.size:
        return state, ()
    return replace(state, stage="run"), (note("gang.joined", f"e{state.epoch}/joined", {}, epoch=state.epoch),)


def _rank_step(trial: Trial, state: State, event: Event) -> Result:
    return reached(state, [event.value.get("step")]), ()


def _rank_finished(trial: Trial, state: State, event: Event) -> Result:
    if not _current(state, event):
        return state, ()
    return replace(state, finished=state.finished | {int(event.value["rank"])}), ()


def _rank_exit(trial: Trial, state: State, event: Event) -> Result:
    state = reached(state, [event.value.get("last_step")])
    if not _current(state, event):
        return state, ()
    rank, code = int(event.value["rank"]), event.value.get("code")
    if code != 0:
        return abnormal(trial, replace(state, failed=state.failed | {rank}), event)
    state = replace(state, exited=state.exited | {rank})
    if len(state.exited) < trial.world.size:
        return state, ()
    return closing.close(trial, state, Ending(outcome="finished"))


def _unsaved(trial: Trial, state: State, event: Event) -> Result:
    """The disk is full, say: no start in place and no spare would find it otherwise."""
    value = event.value
    return replace(state, unsaved=f"checkpoint {value.get('name')} could not be written: {value.get('reason')}"), ()


def _held(trial: Trial, state: State, event: Event) -> Result:
    return faulting.held(trial, state, event) if _current(state, event) else (state, ())


def _inside(trial: Trial, state: State, event: Event) -> Result:
    return faulting.inside(trial, state, event) if _current(state, event) else (state, ())


# --- losses -----------------------------------------------------------------------------------------------------------


def _node_exit(trial: Trial, state: State, event: Event) -> Result:
    name = str(event.node)
    known = state.nodes.get(name)
    if known is None or event.source.incarnation not in (known.incarnation, None) or not known.alive:
        return state, ()
    state = _with_node(state, name, replace(known, alive=False, reachable=False))
    expected = gangs.kill_key(state, name) in state.awaited
    return (state, ()) if expected else _lost(trial, state, event, name)


def _node_silent(trial: Trial, state: State, event: Event) -> Result:
    name = str(event.node)
    if not state.nodes[name].usable:
        return state, ()
    state = _with_node(state, name, replace(state.nodes[name], reachable=False))
    return _lost(trial, state, event, name)


def _lost(trial: Trial, state: State, event: Event, name: str) -> Result:
    if state.ending:
        return closing.without(trial, state, name)
    if state.stage == "stop":
        return _settle(trial, replace(state, awaited=state.awaited - {gangs.stop_key(state, name)}))
    return abnormal(trial, state, event) if name in state.slots else (state, ())


def _stalled(trial: Trial, state: State, event: Event) -> Result:
    return abnormal(trial, state, event) if _current(state, event) else (state, ())


def abnormal(trial: Trial, state: State, event: Event) -> Result:
    """The first abnormal event of an epoch: stop the gang at once, decide nothing yet."""
    if state.ending or state.stage in ("stop", "suspended"):
        return state, ()
    state = replace(faulting.let_go(state), stage="stop", detector=event.f)
    return then(gangs.stop(trial, state, dump=event.f == "gang.stalled"), lambda s: _settle(trial, s))


def _settle(trial: Trial, state: State) -> Result:
    """Everybody has answered, is gone or is silent: now decide."""
    return (state, ()) if state.awaited else _recover(trial, state)


def _recover(trial: Trial, state: State) -> Result:
    decision = recovery.decide(trial, state)
    lost = tuple(name for name in state.slots if not state.usable(name))
    if decision.refused:
        why = {"reason": decision.refused, "lost": lost, "failed": sorted(state.failed), "detector": state.detector}
        refused = note("recovery.refused", f"e{state.epoch}/refused", why, epoch=state.epoch)
        return then((state, (refused,)), lambda s: closing.close(trial, s, _defeat(s, lost, decision.refused)))
    what = {
        "lost": lost, "failed": sorted(state.failed), "detector": state.detector, "policy": dict(decision.policies),
        "slots": decision.slots, "best_step": state.best_step,
    }  # fmt: skip
    decided = note("recovery.decided", f"e{state.epoch + 1}/decided", what, epoch=state.epoch + 1)
    state = replace(
        gangs.next_epoch(state), stale=recovery.stale(state), step_at_start=state.best_step,
        slots=decision.slots, spares=decision.spares, restarts=state.restarts + 1,
    )  # fmt: skip
    return then((state, (decided,)), lambda s: gangs.prepare(trial, s))


def _defeat(state: State, lost: tuple[str, ...], refused: str) -> Ending:
    """A finding about the system under test, unless a node was lost that no planned fault was aimed at."""
    unplanned = [name for name in lost if name not in faulting.targets(state)]
    what = f"lost {', '.join(lost)}" if lost else f"ranks {sorted(state.failed)} failed"
    return Ending(outcome="failed", reason=f"{what}; {refused}", kind="infrastructure" if unplanned else "finding")


# --- outcomes of commands ---------------------------------------------------------------------------------------------


def _prepared(trial: Trial, state: State, event: Event) -> Result:
    """An answer that the preparation, or the closing, of an epoch waits for."""
    if state.ending:
        return closing.answered(trial, state, event)
    if state.stage != "prepare" or event.key not in state.awaited:
        return _applied_late(state, event), ()
    if event.type == "info":
        return _unanswered(trial, state, event)
    if event.type == "fail":
        return _unprepared(trial, state, event)
    return gangs.prepared(trial, state, event)


def _applied_late(state: State, event: Event) -> State:
    """A node that was started for an epoch that is over is still there."""
    late = event.f == "node.apply" and event.type == "ok" and event.node in state.nodes
    return gangs.applied(state, event) if late else state


def _unanswered(trial: Trial, state: State, event: Event) -> Result:
    """The keeper is gone where it answers nothing: its nodes cannot be started again. Else the agent is."""
    if event.f in ("node.apply", "node.kill"):
        return _unprepared(trial, state, event)
    return _node_silent(trial, state, event)


def _unprepared(trial: Trial, state: State, event: Event) -> Result:
    if event.f in ("node.apply", "node.kill"):
        state = replace(state, unrestartable=state.unrestartable | {str(event.node)})
        return abnormal(trial, state, event)
    reason = f"{event.f} on {event.node} failed: {event.value.get('reason', event.type)}"
    return closing.close(trial, state, Ending(outcome="failed", reason=reason, kind="infrastructure"))


def _gang_started(trial: Trial, state: State, event: Event) -> Result:
    if event.type == "ok" or not _current(state, event):
        return state, ()
    if event.type == "info":
        return _node_silent(trial, state, event)
    reason = f"gang.start on {event.node} failed: {event.value.get('reason', '')}"
    return closing.close(trial, state, Ending(outcome="failed", reason=reason, kind="infrastructure"))


def _gang_stopped(trial: Trial, state: State, event: Event) -> Result:
    state = reached(state, list(event.value.get("last_step", {}).values()))
    if state.ending:
        return closing.answered(trial, state, event)
    if state.stage != "stop" or event.key not in state.awaited:
        return state, ()
    state = replace(state, awaited=state.awaited - {str(event.key)})
    if event.type != "ok":
        name = str(event.node)
        state = _with_node(state, name, replace(state.nodes[name], reachable=False))
    return _settle(trial, state)


def _healed(trial: Trial, state: State, event: Event) -> Result:
    result = faulting.healed(state, event)
    return then(result, lambda s: closing.answered(trial, s, event)) if state.ending else result


def _timer(trial: Trial, state: State, event: Event) -> Result:
    key = str(event.key)
    if key == _wall_key(state) and not state.ending:
        reason = f"not finished after {trial.liveness.wall_s:g} s (liveness.wall_s); the stacks of all ranks are in their logs"
        return closing.close(trial, state, Ending(outcome="failed", reason=reason, kind="finding"), dump=True)
    if key.startswith("f/") and not state.ending:
        return faulting.fired(trial, state, event)
    if key == gangs.settle_key(state) and state.stage == "stop":
        return _settled_by_time(trial, state)
    return state, ()


def _settled_by_time(trial: Trial, state: State) -> Result:
    for name in state.slots:
        if gangs.stop_key(state, name) in state.awaited:
            state = _with_node(state, name, replace(state.nodes[name], reachable=False))
    return _settle(trial, replace(state, awaited=frozenset()))


# --- interrupts -------------------------------------------------------------------------------------------------------


def _interrupted(trial: Trial, state: State, event: Event) -> Result:
    """Asked for by the user; or found out afterwards (``nodes``: as they are now), because nothing could be written."""
    state = _with_found(state, event.value["nodes"]) if "nodes" in event.value else state
    if state.ending or state.stage == "suspended":
        return state, ()
    return closing.close(trial, faulting.let_go(state), Ending(outcome="interrupted"))


def _resumed(trial: Trial, state: State, event: Event) -> Result:
    """A new orchestrator with the whole time limit: an interrupted run goes on with the next epoch, any other just goes on."""
    if state.ending and state.stage != "suspended":
        return state, ()
    state = replace(state, resumes=state.resumes + 1)
    result: Result = state, (_wall(trial, state),)
    if state.stage != "suspended":
        return result
    state = _with_found(gangs.next_epoch(state), event.value.get("nodes", {}))
    state = replace(state, ending=None, step_at_start=state.best_step, unsaved="")
    return then((state, result[1]), lambda s: gangs.prepare(trial, s))


def _with_found(state: State, found: Mapping[str, Any]) -> State:
    """The nodes as they were found to be by a new orchestrator."""
    nodes = {
        name: replace(
            node, incarnation=found[name]["incarnation"], ordinal=found[name]["ordinal"], alive=True, reachable=True
        )
        if name in found
        else replace(node, alive=False, reachable=False)
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def _wall(trial: Trial, state: State) -> Command:
    return timer(_wall_key(state), trial.liveness.wall_s)


def _wall_key(state: State) -> str:
    """The limit of the time that the newest orchestrator has; those of orchestrators before it count no more."""
    return f"wall/{state.resumes}" if state.resumes else "wall"


def _run_end(trial: Trial, state: State, event: Event) -> Result:
    return replace(state, stage="done"), ()


def _current(state: State, event: Event) -> bool:
    return state.active and event.epoch in (None, state.epoch)


def _with_node(state: State, name: str, node: Node) -> State:
    return replace(state, nodes={**state.nodes, name: node})


_OBSERVATIONS: dict[str, Handler] = {
    "rank.start": _rank_started,
    "rank.joined": _rank_joined,
    "rank.step": _rank_step,
    "progress": _rank_step,
    "rank.held": _held,
    "rank.inside": _inside,
    "rank.finished": _rank_finished,
    "checkpoint.failed": _unsaved,
    "rank.exit": _rank_exit,
    "node.exit": _node_exit,
    "node.silent": _node_silent,
    "gang.stalled": _stalled,
    "run.interrupted": _interrupted,
    "run.resumed": _resumed,
    "run.end": _run_end,
}
_OUTCOMES: dict[str, Handler] = {
    "fence.write": _prepared,
    "checkpoint.scan": _prepared,
    "store.open": _prepared,
    "node.apply": _prepared,
    "node.kill": _prepared,
    "gang.start": _gang_started,
    "gang.stop": _gang_stopped,
    "fault.act": faulting.acted,
    "fault.heal": _healed,
    "gather": closing.answered,
    "timer": _timer,
}
