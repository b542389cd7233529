"""Recovery ``theirs``: the job's own launchers recover. A lost node is replaced within the attempt; survivors are left alone."""

from __future__ import annotations

from dataclasses import replace

from ...model.event import Command, Event
from ...model.events import NodeApply, NodeApplyDone, NodeKill, RankExit, RecoveryRefused, RecoveryReplaced
from ...model.trial import THEIRS, Trial
from . import faults, gang_commands, recovery, shutdown
from .state import Ending, Result, State, note


def applies(state: State) -> bool:
    """Return whether launchers run and a loss is left to them."""
    return THEIRS in state.plan.policy and state.active


def on_loss(trial: Trial, state: State, event: Event, name: str) -> Result:
    """Start the launcher of a lost node on a spare, or on the node itself after its restart."""
    if name not in state.slots:
        return state, ()
    slot = state.slots.index(name)
    if slot in state.exited | state.vacant:
        return state, ()
    unplanned = name not in faults.targets(state)
    state = replace(state, vacant=state.vacant | {slot}, unfit=state.unfit or unplanned)
    if state.exited and _is_over(trial, state):
        return _close(trial, state, f"{name} was lost after the other launchers had exited")
    if state.restarts >= trial.recovery.max_restarts:
        return _refuse(state, event, name, f"the budget of {trial.recovery.max_restarts} restarts is spent")
    choice = recovery.choose_replacement(state, name)
    if choice is None:
        return _refuse(state, event, name, f"no policy of {list(state.plan.policy)} can replace {name}")
    return _replace(trial, state, event, name, choice)


def on_exit(trial: Trial, state: State, event: Event[RankExit]) -> Result:
    """A launcher left. A code other than 0 ends the run: the launcher gave up, and that is the result."""
    rank, code = event.data.rank, event.data.code
    if code != 0:
        return _close(trial, state, f"the launcher on {event.node} gave up: exit code {code}")
    state = replace(state, exited=state.exited | {rank})
    return shutdown.close(trial, state, Ending(outcome="finished")) if _is_over(trial, state) else (state, ())


def on_stall(trial: Trial, state: State) -> Result:
    """The workers stand still, and their launchers have not noticed: that is the result."""
    reason = (
        f"{state.standstill or 'the worker group stalled'}; the launchers did not end it (--timeout gives them longer)"
    )
    ending = Ending(outcome="failed", reason=reason, kind="infrastructure" if state.unfit else "finding")
    return shutdown.close(trial, state, ending, dump=True)


def on_response(trial: Trial, state: State, event: Event) -> Result:
    """A lost node was killed or started again, or could not be."""
    name = str(event.node)
    state = replace(state, awaited=state.awaited - {str(event.key)})
    if event.type != "ok":
        state = recovery.with_unrestartable(state, event)
        return _refuse(state, event, name, f"{name} could not be started again: {event.data.reason or event.type}")
    if event.kind is NodeApplyDone:
        return _start(trial, gang_commands.with_applied_node(state, event), name)
    node = replace(state.nodes[name], alive=False, reachable=False)
    return _awaiting(replace(state, nodes={**state.nodes, name: node}), gang_commands.apply_node(state, name))


def is_awaited(state: State, event: Event) -> bool:
    """Return whether the event is the response to a restart that this recovery ordered."""
    return applies(state) and event.command in (NodeApply, NodeKill) and event.key in state.awaited


def _replace(trial: Trial, state: State, event: Event, name: str, choice: tuple[str, str]) -> Result:
    policy, new = choice
    slot = state.slots.index(name)
    slots = tuple(new if node == name else node for node in state.slots)
    spares = tuple(node for node in state.spares if node != new)
    state = replace(state, slots=slots, spares=spares, restarts=state.restarts + 1, started=state.started - {slot})
    what = RecoveryReplaced(
        lost=(name,), failed=(), detector=event.f, policy={name: policy}, slots=slots, epoch=state.epoch
    )  # fmt: skip
    notes = (note(what, _key(state, "replaced"), of=name, epoch=state.epoch),)
    is_silent = state.nodes[name].silent
    if policy == "spare":
        state, ends = gang_commands.condemn(state) if is_silent else (state, ())
        state, starts = _start(trial, state, new)
        return state, (*notes, *ends, *starts)
    order = gang_commands.kill_node(state, name) if is_silent else gang_commands.apply_node(state, name)
    state, orders = _awaiting(state, order)
    return state, (*notes, *orders)


def _awaiting(state: State, order: Command) -> Result:
    order = replace(order, key=f"{order.key}/{state.restarts}")
    return replace(state, awaited=state.awaited | {order.key}), (order,)


def _start(trial: Trial, state: State, name: str) -> Result:
    start = gang_commands.start_on(trial, state, name)
    slot = state.slots.index(name)
    return replace(state, vacant=state.vacant - {slot}), (replace(start, key=f"{start.key}/{state.restarts}"),)


def _refuse(state: State, event: Event, name: str, reason: str) -> Result:
    """The node stays lost; the launchers on the others decide what follows."""
    refused = RecoveryRefused(reason=reason, lost=(name,), failed=(), detector=event.f)
    return state, (note(refused, f"{_key(state, 'refused')}/{name}", epoch=state.epoch),)


def _is_over(trial: Trial, state: State) -> bool:
    return state.exited | state.vacant >= set(range(state.world_size(trial)))


def _close(trial: Trial, state: State, reason: str) -> Result:
    ending = Ending(outcome="failed", reason=reason, kind="infrastructure" if state.unfit else "finding")
    return shutdown.close(trial, state, ending)


def _key(state: State, what: str) -> str:
    return f"e{state.epoch}/{what}/{state.restarts}"
