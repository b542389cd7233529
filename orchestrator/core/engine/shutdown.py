"""The end of a run: stop what runs, heal what was broken, start what is missing, gather, and say how it ended.

stop -> prove (what is being injected is either shown or not) -> heal -> quiet (nodes that were silent must answer now) ->
restore -> gather -> end. After it the bed is as `up` left it.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.event import Command, Event, command
from ...model.events import GangStop, Gather, NodeApply, NodeApplyDone, NodeKill, RunEnd
from ...model.trial import Trial
from . import gang_commands, planned_faults
from .state import Commands, Ending, Result, State, note, then


def close(trial: Trial, state: State, ending: Ending, *, dump: bool = False) -> Result:
    """Begin to end the run."""
    state = replace(state, stage="close", ending=ending)
    stops = tuple(_stop(state, name, "stop", dump=dump) for name in _unique(state.slots) if state.usable(name))
    return _wait(trial, state, stops)


def answered(trial: Trial, state: State, event: Event) -> Result:
    """An answer that the closing may be waiting for."""
    if event.key not in state.awaited:
        return state, ()
    state = replace(state, awaited=state.awaited - {str(event.key)})
    return then(_take(state, event), lambda s: _advance(trial, s))


def without(trial: Trial, state: State, name: str) -> Result:
    """A node was lost while the run was being closed: nothing is awaited from it any more."""
    gone = {key for key in state.awaited if key in {_key(state, what, name) for what in ("stop", "quiet")}}
    return _advance(trial, replace(state, awaited=state.awaited - gone)) if gone else (state, ())


def _take(state: State, event: Event) -> Result:
    name, good = str(event.node), event.type == "ok"
    if event.command is GangStop:
        return _reachable(state, name, good), ()
    if event.command is NodeKill and good:
        state = _dead(state, name)
        order = _apply(state, name)
        return replace(state, awaited=state.awaited | {order.key}), (order,)
    if event.kind is NodeApplyDone:
        return gang_commands.applied(state, event), ()
    if event.command in (NodeKill, NodeApply):
        return _unrestored(state, name, event.data.reason or "no answer"), ()
    return state, ()


def _advance(trial: Trial, state: State) -> Result:
    """The next step of closing, when the one before is complete."""
    ending = state.ending
    if state.awaited or ending is None:
        return state, ()
    order = ("stop", "prove", "heal", "quiet", "restore", "gather", "end")
    following = order[order.index(ending.at) + 1]
    state = replace(state, ending=replace(ending, at=following))  # type: ignore[arg-type]
    return _STEPS[following](trial, state)


def _prove(trial: Trial, state: State) -> Result:
    """An injection that takes its time has its answer before it is undone; whoever interrupts does not wait for it."""
    acting = () if _interrupted(state) else planned_faults.with_stage(state, "acting")
    return _wait(trial, state, (), frozenset(planned_faults.act_key(id) for id in acting))


def _heal(trial: Trial, state: State) -> Result:
    result: Result = (state, ())
    for id in planned_faults.with_stage(state, "acting", "acted", "failed"):
        result = then(result, lambda s, id=id: planned_faults.heal(s, id))  # type: ignore[misc]
    state, commands = result
    keys = {planned_faults.heal_key(state, id) for id in planned_faults.with_stage(state, "healing")}
    if not _interrupted(state):
        for id in planned_faults.with_stage(state, "planned", "held"):
            state, more = planned_faults.unreached(state, id, "the run ended before its trigger was reached")
            commands += more
    return then((state, commands), lambda s: _wait(trial, s, (), frozenset(keys)))


def _quiet(trial: Trial, state: State) -> Result:
    """Nodes whose end was ordered while they were silent are ended and started: the order may arrive at any time."""
    silent = [name for name, node in state.nodes.items() if node.silent and not node.condemned]
    return _wait(trial, state, tuple(_stop(state, name, "quiet") for name in silent))


def _restore(trial: Trial, state: State) -> Result:
    """Start what is missing, each node once; those that are lost meanwhile come after."""
    names = _missing(state)
    orders = tuple(_kill(state, name) if state.nodes[name].alive else _apply(state, name) for name in names)
    if state.ending:
        restored = state.ending.restored | set(names)
        state = replace(state, ending=replace(state.ending, at="restore", restored=restored))
    return _wait(trial, state, orders)


def _missing(state: State) -> list[str]:
    tried = state.ending.restored if state.ending else frozenset()
    return [name for name, node in state.nodes.items() if not node.usable and name not in tried]


def _gather(trial: Trial, state: State) -> Result:
    if _missing(state):
        return _restore(trial, state)
    if _interrupted(state):
        return replace(state, stage="suspended"), ()
    return _wait(trial, state, (command(Gather(), "gather", deadline_s=60.0, epoch=state.epoch),))


def _end(trial: Trial, state: State) -> Result:
    ending = state.ending or Ending(outcome="failed")
    if left := planned_faults.unhealed(state):
        ending = _also(ending, "; ".join(left))
    end = RunEnd(outcome=ending.outcome, reason=ending.reason, kind=ending.kind)
    return state, (note(end, "end", epoch=state.epoch),)


def _wait(trial: Trial, state: State, commands: Commands, keys: frozenset[str] = frozenset()) -> Result:
    awaited = keys | {command.key for command in commands}
    state = replace(state, awaited=awaited)
    return (state, commands) if awaited else then((state, commands), lambda s: _advance(trial, s))


def _stop(state: State, name: str, what: str, *, dump: bool = False) -> Command:
    return gang_commands.stop_command(state, name, _key(state, what, name), dump=dump)


def _apply(state: State, name: str) -> Command:
    """A host that is only just back may take its time."""
    return command(NodeApply(node=name), _key(state, "apply", name), node=name, deadline_s=60.0)


def _kill(state: State, name: str) -> Command:
    key, incarnation = _key(state, "kill", name), state.nodes[name].incarnation
    return command(NodeKill(), key, node=name, incarnation=incarnation)


def _reachable(state: State, name: str, good: bool) -> State:
    node = state.nodes[name]
    return replace(state, nodes={**state.nodes, name: replace(node, reachable=good and node.alive)})


def _dead(state: State, name: str) -> State:
    dead = replace(state.nodes[name], alive=False, reachable=False)
    return replace(state, nodes={**state.nodes, name: dead})


def _unrestored(state: State, name: str, reason: str) -> State:
    ending = state.ending or Ending(outcome="failed")
    return replace(state, ending=_also(ending, f"{name} could not be started again: {reason}"))


def _also(ending: Ending, what: str) -> Ending:
    """The bed is not as `up` left it, whatever came of the run."""
    text = "; ".join(part for part in (ending.reason, what) if part)
    return replace(ending, reason=text, kind="infrastructure")


def _interrupted(state: State) -> bool:
    return state.ending is not None and state.ending.outcome == "interrupted"


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _key(state: State, what: str, name: str) -> str:
    return f"close/e{state.epoch}/{what}/{name}"


_STEPS = {"prove": _prove, "heal": _heal, "quiet": _quiet, "restore": _restore, "gather": _gather, "end": _end}
