"""Shut down a run: stop the gang, heal the faults, restart missing nodes, gather the evidence, record the outcome. Or interrupt it.

stop -> prove (wait for the results of injections) -> heal -> quiet (silent nodes must respond now) -> restore -> gather ->
end. Afterwards the bed is in the state that `up` left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...model.event import Command, Event, command
from ...model.events import (
    GangStop,
    Gather,
    NodeApply,
    NodeApplyDone,
    NodeFacts,
    NodeKill,
    RunEnd,
    RunInterrupted,
    RunResumed,
)
from ...model.provider import GATHER_S, count_waves
from ...model.trial import Trial
from . import faults, gang_commands, replace_policy
from .state import Commands, Ending, Node, Result, State, note, then, timer

#: How long a node may take to end its ranks that was silent, and whose heartbeat has not returned.
SILENT_S = 5.0
#: How long a node may take to respond whose host is just back: a keeper on a network file system takes its time to start.
BACK_S = 180.0


def close(trial: Trial, state: State, ending: Ending, *, dump: bool = False) -> Result:
    state = replace(state, stage="close", ending=ending)
    stops = tuple(_stop(state, name, "stop", dump=dump) for name in _unique(state.slots) if state.usable(name))
    return _wait(trial, state, stops)


def on_response(trial: Trial, state: State, event: Event) -> Result:
    """A response that the shutdown may await."""
    if event.key not in state.awaited:
        return state, ()
    state = replace(state, awaited=state.awaited - {str(event.key)})
    return then(_apply_response(state, event), lambda s: _advance(trial, s))


def without(trial: Trial, state: State, name: str) -> Result:
    """A node was lost during the shutdown: no response is awaited from it."""
    gone = {key for key in state.awaited if key in {_key(state, what, name) for what in ("stop", "quiet")}}
    return _advance(trial, replace(state, awaited=state.awaited - gone)) if gone else (state, ())


def _apply_response(state: State, event: Event) -> Result:
    name, good = str(event.node), event.type == "ok"
    if event.command is GangStop:
        return _reachable(state, name, good), ()
    if event.command is NodeKill and good:
        state = _dead(state, name)
        if replace_policy.is_replacement(state, name):
            return state, ()
        order = _apply(state, name)
        return replace(state, awaited=state.awaited | {order.key}), (order,)
    if event.kind is NodeApplyDone:
        return gang_commands.with_applied_node(state, event), ()
    if event.command in (NodeKill, NodeApply):
        return _unrestored(state, name, event.data.reason or "no response"), ()
    return state, ()


def _advance(trial: Trial, state: State) -> Result:
    """Begin the next step of the shutdown when the current step is complete."""
    ending = state.ending
    if state.awaited or ending is None:
        return state, ()
    order = ("stop", "prove", "heal", "quiet", "restore", "gather", "end")
    following = order[order.index(ending.at) + 1]
    state = replace(state, ending=replace(ending, at=following))  # type: ignore[arg-type]
    return _STEPS[following](trial, state)


def _prove(trial: Trial, state: State) -> Result:
    """Wait for the result of a slow injection before healing it; an interruption does not wait."""
    acting = () if _interrupted(state) else faults.with_stage(state, "acting")
    return _wait(trial, state, (), frozenset(faults.act_key(id) for id in acting))


def _heal(trial: Trial, state: State) -> Result:
    result: Result = (state, ())
    for id in faults.with_stage(state, "acting", "acted", "failed"):
        result = then(result, lambda s, id=id: faults.heal(s, id))  # type: ignore[misc]
    state, commands = result
    keys = {faults.heal_key(state, id) for id in faults.with_stage(state, "healing")}
    if not _interrupted(state):
        for id in faults.with_stage(state, "planned", "held"):
            state, more = faults.unreached(state, id, faults.why_unreached(trial, state, id))
            commands += more
    return then((state, commands), lambda s: _wait(trial, s, (), frozenset(keys)))


def _quiet(trial: Trial, state: State) -> Result:
    """Stop the ranks of silent nodes. Nodes that were ordered to exit while silent are killed and restarted later."""
    silent = [name for name, node in state.nodes.items() if node.silent and not node.condemned]
    return _wait(trial, state, tuple(_stop(state, name, "quiet") for name in silent))


def _restore(trial: Trial, state: State) -> Result:
    """Start missing nodes, each node at most once; nodes lost in the meantime follow. Replacements end: `up` left none."""
    names = [*_missing(state), *_replacements(state)]
    orders = tuple(_restoring(state, name) for name in names)
    if state.ending:
        restored = state.ending.restored | set(names)
        state = replace(state, ending=replace(state.ending, at="restore", restored=restored))
    return _wait(trial, state, orders)


def _missing(state: State) -> list[str]:
    tried = state.ending.restored if state.ending else frozenset()
    missing = (name for name, node in state.nodes.items() if not node.usable and name not in tried)
    return [name for name in missing if not replace_policy.is_replacement(state, name)]


def _replacements(state: State) -> list[str]:
    """The replacements that were started, and are to end with the run. A suspended run keeps them."""
    if state.ending is None or (_interrupted(state) and not state.ending.is_final):
        return []
    ordered = (name for name, node in state.nodes.items() if node.incarnation or name in state.chosen)
    started = (name for name in ordered if name not in state.ending.restored)
    return [name for name in started if replace_policy.is_replacement(state, name)]


def _restoring(state: State, name: str) -> Command:
    """A replacement ends in whichever incarnation: healing its fault may have started it again."""
    if replace_policy.is_replacement(state, name):
        return replace(_kill(state, name), incarnation=None)
    return _kill(state, name) if state.nodes[name].alive else _apply(state, name)


def _gather(trial: Trial, state: State) -> Result:
    if _missing(state) or _replacements(state):
        return _restore(trial, state)
    if _interrupted(state) and state.ending and not state.ending.is_final:
        return replace(state, stage="suspended"), ()
    deadline_s = GATHER_S * count_waves(len(state.nodes))
    return _wait(trial, state, (command(Gather(), "gather", deadline_s=deadline_s, epoch=state.epoch),))


def _end(trial: Trial, state: State) -> Result:
    ending = state.ending or Ending(outcome="failed")
    if unhealed := faults.unhealed(state):
        ending = _with_bed_problem(ending, "; ".join(unhealed))
    if state.bed_ended:  # the cause of all else
        ending = _with_bed_problem(replace(ending, reason=state.bed_ended), ending.reason)
    end = RunEnd(outcome=ending.outcome, reason=ending.reason, kind=ending.kind)
    return state, (note(end, "end", epoch=state.epoch),)


def _wait(trial: Trial, state: State, commands: Commands, keys: frozenset[str] = frozenset()) -> Result:
    awaited = keys | {command.key for command in commands}
    state = replace(state, awaited=awaited)
    return (state, commands) if awaited else then((state, commands), lambda s: _advance(trial, s))


def _stop(state: State, name: str, what: str, *, dump: bool = False) -> Command:
    response_s = SILENT_S if state.nodes[name].silent and state.nodes[name].suspect else gang_commands.RESPONSE_S
    return gang_commands.stop_command(state, name, _key(state, what, name), dump=dump, response_s=response_s)


def _apply(state: State, name: str) -> Command:
    return _patient(state, replace(gang_commands.apply_node(state, name), key=_key(state, "apply", name)))


def _kill(state: State, name: str) -> Command:
    return _patient(state, replace(gang_commands.kill_node(state, name), key=_key(state, "kill", name)))


def _patient(state: State, order: Command) -> Command:
    """A host that is just back starts its keeper first."""
    is_back = faults.is_back(state, state.host(str(order.node)))
    return replace(order, deadline_s=max(order.deadline_s, BACK_S)) if is_back else order


def _reachable(state: State, name: str, good: bool) -> State:
    node = state.nodes[name]
    return replace(state, nodes={**state.nodes, name: replace(node, reachable=good and node.alive)})


def _dead(state: State, name: str) -> State:
    dead = replace(state.nodes[name], alive=False, reachable=False)
    return replace(state, nodes={**state.nodes, name: dead})


def _unrestored(state: State, name: str, reason: str) -> State:
    ending = state.ending or Ending(outcome="failed")
    if state.bed_ended:
        return state
    what = "ended" if replace_policy.is_replacement(state, name) else "started again"
    return replace(state, ending=_with_bed_problem(ending, f"{name} could not be {what}: {reason}"))


def _with_bed_problem(ending: Ending, what: str) -> Ending:
    """The outcome with a further reason: the bed is not in the state that `up` left."""
    text = "; ".join(part for part in (ending.reason, what) if part)
    return replace(ending, reason=text, kind="infrastructure")


def _interrupted(state: State) -> bool:
    return state.ending is not None and state.ending.outcome == "interrupted"


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _key(state: State, what: str, name: str) -> str:
    return f"close/e{state.epoch}/{what}/{name}"


_STEPS = {"prove": _prove, "heal": _heal, "quiet": _quiet, "restore": _restore, "gather": _gather, "end": _end}


def interrupted(trial: Trial, state: State, event: Event[RunInterrupted]) -> Result:
    """Interrupted by the user, or detected later because the journal could not be written (``nodes``: as observed)."""
    state = state if event.data.nodes is None else _with_observed_nodes(state, event.data.nodes)
    if state.ending or state.stage == "suspended":
        return state, ()
    return close(trial, faults.release_held(state), _interruption(event))


def _interruption(event: Event[RunInterrupted]) -> Ending:
    is_final = bool(event.data.is_final)
    return Ending(outcome="interrupted", reason="interrupted by the user" if is_final else "", is_final=is_final)


def resumed(trial: Trial, state: State, event: Event[RunResumed]) -> Result:
    """A new orchestrator takes over with the full time limit; an interrupted run continues with its next attempt."""
    if state.ending and state.stage != "suspended":
        return state, ()
    state = replace(state, resumes=state.resumes + 1)
    result: Result = state, (wall(trial, state),)
    if state.stage != "suspended":
        return result
    state = _with_observed_nodes(gang_commands.next_epoch(state), event.data.nodes or {})
    state = replace(state, ending=None, step_at_start=state.best_step, hopeless="", unfit=False, bed_ended="")
    state = replace(state, unresponsive=frozenset())
    return then((state, result[1]), lambda s: gang_commands.prepare(trial, s))


def _with_observed_nodes(state: State, observed: Mapping[str, NodeFacts]) -> State:
    nodes = {
        name: Node(incarnation=str(observed[name].incarnation), ordinal=observed[name].ordinal or 0)
        if name in observed
        else replace(node, alive=False, reachable=False)
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def wall(trial: Trial, state: State) -> Command:
    return timer(wall_key(state), trial.liveness.wall_s)


def wall_key(state: State) -> str:
    """The timer of the newest orchestrator; timers of earlier orchestrators have no effect."""
    return f"wall/{state.resumes}" if state.resumes else "wall"
