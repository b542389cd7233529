"""Grow back: nodes by which the gang has shrunk are started again, and rejoin after the next checkpoint of the smaller gang."""

from __future__ import annotations

from dataclasses import replace

from ...model import events
from ...model.event import Command, Event
from ...model.trial import Trial
from . import faults, gang_commands, recovery
from .state import Result, State, note, then, timer

#: The first part of the keys of timers and orders.
_TIMER = "grow"


def usable(state: State) -> tuple[str, ...]:
    """The absent nodes that can rejoin."""
    return tuple(name for name in state.absent if state.usable(name))


def wait(trial: Trial, state: State) -> Result:
    """Arm the timer after which absent nodes are started again, if the trial has one and they are not there yet."""
    after_s = trial.recovery.grow_after_s
    if after_s is None or not _startable(state):
        return state, ()
    state = replace(state, returns=state.returns + 1)
    return state, (timer(_timer_key(state), after_s),)


def fired(trial: Trial, state: State, event: Event) -> Result:
    """Start the absent nodes. One that is only silent is killed first, and started after the next wait."""
    if event.key != _timer_key(state) or state.ending or state.over:
        return state, ()
    names = _startable(state)
    orders = tuple(_order(state, name) for name in names)
    state = replace(state, returning=state.returning | set(names))
    return state, orders


def on_response(trial: Trial, state: State, event: Event) -> Result:
    """An absent node was started or killed, or could not be: then it is not tried again."""
    name = str(event.node)
    state = replace(state, returning=state.returning - {name})
    if event.kind is events.NodeApplyDone:
        return gang_commands.with_applied_node(state, event), ()
    if event.type != "ok":
        return recovery.with_unrestartable(state, event), ()
    dead = replace(state.nodes[name], alive=False, reachable=False)
    return wait(trial, replace(state, nodes={**state.nodes, name: dead}))


def is_awaited(state: State, event: Event) -> bool:
    """Return whether the event is the response to an order of this module."""
    return (
        event.command in (events.NodeApply, events.NodeKill)
        and str(event.key).startswith(f"{_TIMER}/")
        and event.node in state.returning
    )


def on_loss(trial: Trial, state: State, name: str) -> Result:
    """An absent node that was there again is lost."""
    return wait(trial, state) if name in state.absent and name not in state.returning else (state, ())


def on_checkpoint(trial: Trial, state: State, event: Event[events.CheckpointCommit | events.SaveCommitted]) -> Result:
    """Stop the smaller gang after a checkpoint, so that no step is lost, if a node can rejoin. Planned faults go first."""
    is_busy = faults.with_stage(state, "held", "acting")
    if state.stage != "run" or event.epoch != state.epoch or not usable(state) or is_busy or _is_last(state, event):
        return state, ()
    growing = note(events.RecoveryGrowing(joining=usable(state)), f"e{state.epoch}/growing", epoch=state.epoch)
    state = replace(faults.release_held(state), stage="stop", is_growing=True)
    return then((state, (growing,)), lambda s: gang_commands.stop(trial, s))


def is_due(state: State) -> bool:
    """Return whether the gang was stopped to grow, and lost nothing in the meantime."""
    return state.is_growing and all(map(state.usable, state.slots))


def grow(trial: Trial, state: State) -> Result:
    """The next attempt, with the nodes that rejoin. It is no recovery: neither a restart nor a part of a crash loop."""
    joined, absent = recovery.rejoin(trial, state, len(state.slots), state.absent)
    slots = (*state.slots, *joined)
    what = events.RecoveryGrown(joined=joined, slots=slots, best_step=state.best_step)
    decided = note(what, f"e{state.epoch + 1}/grown", epoch=state.epoch + 1)
    state = replace(gang_commands.next_epoch(state), step_at_start=state.best_step, slots=slots, absent=absent)
    return then((state, (decided,)), lambda s: then(wait(trial, s), lambda t: gang_commands.prepare(trial, t)))


def _startable(state: State) -> tuple[str, ...]:
    excluded = {*state.unrestartable, *state.returning}
    return tuple(name for name in state.absent if not state.usable(name) and name not in excluded)


def _order(state: State, name: str) -> Command:
    order = gang_commands.kill_node(state, name) if state.nodes[name].alive else gang_commands.apply_node(state, name)
    return replace(order, key=f"{_timer_key(state)}/{name}")


def _is_last(state: State, event: Event) -> bool:
    """Return whether nothing follows the checkpoint."""
    last = state.plan.last_step
    return last is not None and event.kind is events.CheckpointCommit and (event.data.step or 0) >= last


def _timer_key(state: State) -> str:
    return f"{_TIMER}/{state.returns}"
