"""The engine: ``begin`` and ``step`` compute the next state and commands from each event of a run, without effects.

An attempt: prepare (fence, checkpoint, store, nodes) -> start (fork, join) -> run -> close. On the first abnormal event:
stop the gang -> settle (wait for every node's response, exit or silence) -> decide -> prepare the next attempt.
With the recovery ``theirs`` the attempt continues instead: see ``replacement``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...model import codec, events
from ...model.event import Event
from ...model.payload import Payload
from ...model.plan import Plan, PlanNode
from ...model.trial import Trial
from ...views import standing
from . import (
    faults,
    gang_commands,
    growth,
    launcher_recovery,
    planned_stop,
    recovery,
    replace_policy,
    shutdown,
    standstill,
)
from .state import Ending, FaultState, Node, Result, State, forged, note, reached, then

Handler = Callable[[Trial, State, Event[Any]], Result]


def begin(trial: Trial, plan: Plan) -> Result:
    """The initial state and commands of a run."""
    state = State(
        plan=plan,
        stage="prepare",
        slots=plan.slots,
        spares=plan.spares,
        nodes={n.name: _node_at_begin(n) for n in plan.nodes.values()},
        faults={fault.id: FaultState() for fault in trial.faults},
    )
    opening = (*faults.planned_notes(trial), shutdown.wall(trial, state))
    return then((state, opening), lambda s: gang_commands.prepare(trial, s))


def _node_at_begin(node: PlanNode) -> Node:
    """A replacement that was never started has no incarnation."""
    is_there = bool(node.incarnation)
    return Node(incarnation=node.incarnation, ordinal=node.ordinal, alive=is_there, reachable=is_there)


def step(trial: Trial, state: State, event: Event) -> Result:
    """The state after ``event``, and the commands to issue. Unknown and late events change nothing."""
    if state.stage == "done" or event.type == "invoke" or forged(event):
        return state, ()
    if isinstance(event.data, events.CommandFailed | events.NodeKillDone) and event.data.bed_ended:
        state = replace(state, bed_ended=event.data.bed_ended)
    handler = _HANDLERS.get(event.subject) if event.subject else None
    result: Result = handler(trial, state, event) if handler else (state, ())
    if result[0].over or result[0].ending:
        return result
    result = then(result, lambda s: faults.on_event(trial, s, event))
    result = then(result, lambda s: planned_stop.on_event(trial, s, event))
    return then(result, lambda s: _reconsider(trial, s)) if state.stage == "wait" else result


# --- the gang ---------------------------------------------------------------------------------------------------------


def _rank_started(trial: Trial, state: State, event: Event[events.RankStart]) -> Result:
    if not _current(state, event):
        return state, ()
    state = replace(state, started=state.started | {event.data.rank})
    return faults.after_start(trial, state) if len(state.started) == state.world_size(trial) else (state, ())


def _rank_joining(trial: Trial, state: State, event: Event[events.RankJoining]) -> Result:
    if not _current(state, event):
        return state, ()
    return replace(state, joining={**state.joining, event.data.rank: event.data}), ()


def _rank_joined(trial: Trial, state: State, event: Event[events.RankJoined]) -> Result:
    if not _current(state, event):
        return state, ()
    state = replace(state, joined=state.joined | {event.data.rank})
    if len(state.joined) < state.world_size(trial):
        return state, ()
    return replace(state, stage="run"), (note(events.GangJoined(), f"e{state.epoch}/joined", epoch=state.epoch),)


def _rank_step(trial: Trial, state: State, event: Event[events.RankStep | events.Progress]) -> Result:
    return reached(state, [event.data.step]), ()


def _rank_finished(trial: Trial, state: State, event: Event[events.RankFinished]) -> Result:
    if not _current(state, event):
        return state, ()
    return replace(state, finished=state.finished | {event.data.rank}), ()


def _rank_exit(trial: Trial, state: State, event: Event[events.RankExit]) -> Result:
    state = reached(state, [event.data.last_step])
    if not _current(state, event):
        return state, ()
    if launcher_recovery.applies(state):
        return launcher_recovery.on_exit(trial, state, event)
    rank = event.data.rank
    if event.data.code != 0:
        state = replace(state, needs_stacks=state.needs_stacks or event.data.code == -signal.SIGABRT)
        return abnormal(trial, recovery.with_failure(replace(state, failed=state.failed | {rank}), event), event)
    state = replace(state, exited=state.exited | {rank})
    if len(state.exited) < state.world_size(trial):
        return state, ()
    return shutdown.close(trial, state, Ending(outcome="finished"))


def _rank_error(trial: Trial, state: State, event: Event[events.RankError]) -> Result:
    """A rank reported the error that ends it."""
    is_expected = event.epoch == state.epoch and (state.active or state.stage == "stop")
    if not is_expected:
        return state, ()
    state = recovery.with_hopeless_error(recovery.with_failure(state, event), event.data)
    return replace(
        state, needs_stacks=state.needs_stacks or standing.is_of_peers(event.data.kind, event.data.message)
    ), ()


def _held(trial: Trial, state: State, event: Event[events.RankHeld]) -> Result:
    return faults.held(trial, state, event) if _current(state, event) else (state, ())


def _inside(trial: Trial, state: State, event: Event[events.RankInside]) -> Result:
    return faults.inside(trial, state, event) if _current(state, event) else (state, ())


def _saved(trial: Trial, state: State, event: Event[events.SaveCommitted]) -> Result:
    if not _current(state, event):
        return state, ()
    return then(faults.saved(trial, state, event), lambda s: growth.on_checkpoint(trial, s, event))


# --- losses -----------------------------------------------------------------------------------------------------------


def _node_exit(trial: Trial, state: State, event: Event) -> Result:
    name = str(event.node)
    known = state.nodes.get(name)
    if known is None or event.source.incarnation not in (known.incarnation, None) or not known.alive:
        return state, ()
    state = recovery.with_loss(_with_node(state, name, replace(known, alive=False, reachable=False)), event)
    expected = gang_commands.kill_key(state, name) in state.awaited
    return (state, ()) if expected else _lost(trial, state, event, name)


def _node_silent(trial: Trial, state: State, event: Event) -> Result:
    """The heartbeat of the node is lost, or its agent does not respond."""
    name = str(event.node)
    if not state.nodes[name].usable:
        return state, ()
    last_seen = event.data.seen if isinstance(event.data, events.NodeSilent) else None
    cut_off = last_seen == "unreachable"
    node = replace(state.nodes[name], reachable=False, cut_off=cut_off, is_observed=bool(last_seen) and not cut_off)
    state = recovery.with_loss(_with_node(state, name, node), event)
    return _lost(trial, state, event, name)


def _node_suspect(trial: Trial, state: State, event: Event) -> Result:
    return _with_suspicion(state, event, suspect=True), ()


def _node_heard(trial: Trial, state: State, event: Event) -> Result:
    """A silent node stays silent until the run is closed: the actions of its ranks in the meantime are not known."""
    return _with_suspicion(state, event, suspect=False), ()


def _with_suspicion(state: State, event: Event, *, suspect: bool) -> State:
    name = str(event.node)
    known = state.nodes.get(name)
    return (
        _with_node(state, name, replace(known, suspect=suspect, cut_off=known.cut_off and suspect)) if known else state
    )


def _lost(trial: Trial, state: State, event: Event, name: str) -> Result:
    if state.ending:
        return shutdown.without(trial, state, name)
    if state.stage == "stop":
        return _settle(trial, replace(state, awaited=state.awaited - {gang_commands.stop_key(state, name)}))
    if launcher_recovery.applies(state):
        return launcher_recovery.on_loss(trial, state, event, name)
    if state.stage == "wait":
        return state, ()
    return abnormal(trial, state, event) if name in state.slots else growth.on_loss(trial, state, name)


def _stalled(trial: Trial, state: State, event: Event) -> Result:
    if launcher_recovery.applies(state) and _current(state, event):
        return launcher_recovery.on_stall(trial, state)
    return abnormal(trial, state, event) if _current(state, event) else (state, ())


def abnormal(trial: Trial, state: State, event: Event) -> Result:
    """Stop the gang at once on the first abnormal event of an attempt; the decision follows later.

    Ranks that stand still, or for which a rank has waited in vain, show first where they are.
    """
    if state.ending or state.stage in ("stop", "suspended"):
        return state, ()
    state = replace(faults.release_held(state), stage="stop", detector=event.f)
    is_dumped = event.kind is events.GangStalled or state.needs_stacks
    return then(gang_commands.stop(trial, state, dump=is_dumped), lambda s: _settle(trial, s))


def _settle(trial: Trial, state: State) -> Result:
    """Decide when every node has responded, exited or fallen silent."""
    return (state, ()) if state.awaited else _recover(trial, state)


def _recover(trial: Trial, state: State) -> Result:
    if growth.is_due(state):
        return growth.grow(trial, state)
    state = replace_policy.with_lost_hosts(state)
    decision = recovery.decide(trial, state)
    if decision.is_irreplaceable and replace_policy.waits(trial, state):
        return replace_policy.wait(trial, state)
    return _conclude(trial, state, decision)


def _reconsider(trial: Trial, state: State) -> Result:
    """Decide again after any event: it may have made the room that recovery waits for."""
    decision = recovery.decide(trial, state) if state.stage == "wait" else None
    if decision is None:
        return state, ()
    return replace_policy.end_silent(trial, state) if decision.is_irreplaceable else _conclude(trial, state, decision)


def _conclude(trial: Trial, state: State, decision: recovery.Decision) -> Result:
    return _refuse(trial, state, decision) if decision.refused else _begin_next(trial, state, decision)


def _refuse(trial: Trial, state: State, decision: recovery.Decision) -> Result:
    lost = _lost_of_gang(state)
    why = events.RecoveryRefused(
        reason=decision.refused, lost=lost, failed=tuple(sorted(state.failed)), detector=state.detector
    )
    refused = note(why, f"e{state.epoch}/refused", epoch=state.epoch)
    state = replace(state, unfit=state.unfit or decision.lacks_spare)
    return then((state, (refused,)), lambda s: shutdown.close(trial, s, recovery.defeat(s, lost, decision)))


def _begin_next(trial: Trial, state: State, decision: recovery.Decision) -> Result:
    """Record the decision, and prepare the next attempt."""
    what = events.RecoveryDecided(
        lost=_lost_of_gang(state), failed=tuple(sorted(state.failed)), detector=state.detector, policy=decision.policies,
        slots=decision.slots, best_step=state.best_step, joined=decision.joined or None,
        hosts={name: state.host(name) for name in decision.chosen.values()} or None,
    )  # fmt: skip
    decided = note(what, f"e{state.epoch + 1}/decided", epoch=state.epoch + 1)
    state = replace(
        gang_commands.next_epoch(state), stale=recovery.stale(trial, state), step_at_start=state.best_step,
        slots=decision.slots, spares=decision.spares, absent=decision.absent, restarts=state.restarts + 1,
        stands_for=replace_policy.stands_for(state, decision.chosen),
        chosen=state.chosen | frozenset(decision.chosen.values()),
    )  # fmt: skip
    return then((state, (decided,)), lambda s: then(growth.wait(trial, s), lambda t: gang_commands.prepare(trial, t)))


def _lost_of_gang(state: State) -> tuple[str, ...]:
    return tuple(name for name in state.slots if not state.usable(name))


# --- outcomes of commands ---------------------------------------------------------------------------------------------


def _prepared(trial: Trial, state: State, event: Event) -> Result:
    """A response that the preparation or the closing of an attempt awaits."""
    if state.ending:
        return shutdown.on_response(trial, state, event)
    if growth.is_awaited(state, event):
        return growth.on_response(trial, state, event)
    if launcher_recovery.is_awaited(state, event):
        return launcher_recovery.on_response(trial, state, event)
    if state.stage != "prepare" or event.key not in state.awaited:
        return _applied_late(state, event), ()
    if event.type == "info":
        return _no_response(trial, state, event)
    if event.type == "fail":
        return _preparation_failed(trial, state, event)
    return gang_commands.on_prepared(trial, state, event)


def _applied_late(state: State, event: Event) -> State:
    """A node that was started for an ended attempt remains; a silent node may be killed late."""
    name = str(event.node)
    if event.type != "ok" or name not in state.nodes:
        return state
    if event.command is events.NodeKill and state.nodes[name].silent:
        return _with_node(state, name, replace(state.nodes[name], alive=False))
    return gang_commands.with_applied_node(state, event) if event.kind is events.NodeApplyDone else state


def _no_response(trial: Trial, state: State, event: Event) -> Result:
    """Handle a missing response: of a keeper, so that its nodes cannot be restarted; or of an agent, whose node is silent then."""
    if event.command in (events.NodeApply, events.NodeKill):
        return _preparation_failed(trial, state, event)
    return _node_silent(trial, state, event)


def _preparation_failed(trial: Trial, state: State, event: Event) -> Result:
    if event.command is events.NodeKill and event.node not in state.slots:
        return gang_commands.on_prepared(trial, state, event)
    if event.command in (events.NodeApply, events.NodeKill):
        return abnormal(trial, recovery.with_unrestartable(state, event), event)
    reason = f"{event.f} on {event.node} failed: {event.data.reason or event.type}"
    return shutdown.close(trial, state, Ending(outcome="failed", reason=reason, kind="infrastructure"))


def _gang_started(trial: Trial, state: State, event: Event[events.GangStartDone | events.CommandFailed]) -> Result:
    if isinstance(event.data, events.GangStartDone) or not _current(state, event):
        return state, ()
    if event.type == "info":
        return _node_silent(trial, state, event)
    reason = f"{event.f} on {event.node} failed: {event.data.reason or ''}"
    return shutdown.close(trial, state, Ending(outcome="failed", reason=reason, kind="infrastructure"))


def _gang_stopped(trial: Trial, state: State, event: Event[events.GangStopDone]) -> Result:
    state = reached(state, list((event.data.last_step or {}).values()))
    if state.ending:
        return shutdown.on_response(trial, state, event)
    if state.stage != "stop" or event.key not in state.awaited:
        return state, ()
    state = replace(state, awaited=state.awaited - {str(event.key)})
    if event.type != "ok":
        name = str(event.node)
        state = _with_node(state, name, replace(state.nodes[name], reachable=False))
    return _settle(trial, state)


def _acted(trial: Trial, state: State, event: Event[events.FaultActDone | events.CommandFailed]) -> Result:
    if state.ending:
        return shutdown.on_response(trial, faults.settled(state, event), event)
    if event.type == "info" and isinstance(event.data, events.CommandFailed) and event.data.gone:
        reason = f"{event.f} on {event.node}: {event.data.reason}; ccbed up brings it back"
        ending = Ending(outcome="failed", reason=reason, kind="infrastructure")
        return shutdown.close(trial, faults.settled(state, event), ending)
    return faults.acted(trial, state, event)


def _healed(trial: Trial, state: State, event: Event) -> Result:
    result = faults.healed(state, event)
    return then(result, lambda s: shutdown.on_response(trial, s, event)) if state.ending else result


def _injected(trial: Trial, state: State, event: Event[events.FaultInjected]) -> Result:
    return faults.injected(state, event), ()


def _timer(trial: Trial, state: State, event: Event) -> Result:
    key = str(event.key)
    if key == shutdown.wall_key(state) and not state.ending:
        reason = f"not finished after {trial.liveness.wall_s:g} s (liveness.wall_s); the stacks of all ranks are in their logs"
        return shutdown.close(trial, state, Ending(outcome="failed", reason=reason, kind="finding"), dump=True)
    if key == replace_policy.timer_key(state) and state.stage == "wait":
        return _conclude(trial, state, recovery.decide(trial, state, waited_s=trial.recovery.replace_wait_s or 0.0))
    if key.startswith("grow/"):
        return growth.fired(trial, state, event)
    if key.startswith("f/") and not state.ending:
        return faults.fired(trial, state, event)
    if key == gang_commands.settle_key(state) and state.stage == "stop":
        return _settled_by_time(trial, state)
    return state, ()


def _settled_by_time(trial: Trial, state: State) -> Result:
    """Give up the nodes without a heartbeat. The others are awaited until they are lost or their command exceeds its deadline."""
    for name in state.slots:
        node = state.nodes[name]
        if gang_commands.stop_key(state, name) in state.awaited and (node.suspect or not node.usable):
            state = _with_node(state, name, replace(node, reachable=False))
            state = replace(state, awaited=state.awaited - {gang_commands.stop_key(state, name)})
    return _settle(trial, state)


def _run_begin(trial: Trial, state: State, event: Event) -> Result:
    return replace(state, begin=codec.digest(event.value)), ()


def _run_end(trial: Trial, state: State, event: Event) -> Result:
    return replace(state, stage="done"), ()


def _current(state: State, event: Event) -> bool:
    return state.active and event.epoch in (None, state.epoch)


def _with_node(state: State, name: str, node: Node) -> State:
    return replace(state, nodes={**state.nodes, name: node})


#: Class of an observation, or of the command that an outcome closes -> its handler.
_HANDLERS: dict[type[Payload], Handler] = {
    events.RankStart: _rank_started,
    events.RankJoining: _rank_joining,
    events.RankJoined: _rank_joined,
    events.RankStep: _rank_step,
    events.Progress: _rank_step,
    events.RankHeld: _held,
    events.RankInside: _inside,
    events.RankFinished: _rank_finished,
    events.RankError: _rank_error,
    events.RankExit: _rank_exit,
    events.SaveCommitted: _saved,
    events.CheckpointCommit: growth.on_checkpoint,
    events.FaultInjected: _injected,
    events.NodeExit: _node_exit,
    events.NodeSilent: _node_silent,
    events.NodeSuspect: _node_suspect,
    events.NodeHeard: _node_heard,
    events.HostsDrained: replace_policy.on_drained,
    events.GangQuiet: standstill.on_quiet,
    events.GangInspect: standstill.on_inspected,
    events.GangStalled: _stalled,
    events.RunInterrupted: shutdown.interrupted,
    events.RunResumed: shutdown.resumed,
    events.RunBegin: _run_begin,
    events.RunEnd: _run_end,
    events.FenceWrite: _prepared,
    events.CheckpointScan: _prepared,
    events.StoreOpen: _prepared,
    events.NodeApply: _prepared,
    events.NodeKill: _prepared,
    events.GangStart: _gang_started,
    events.GangStop: _gang_stopped,
    events.FaultAct: _acted,
    events.FaultHeal: _healed,
    events.Gather: shutdown.on_response,
    events.Timer: _timer,
}
