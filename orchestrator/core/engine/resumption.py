"""A run that is interrupted, and one that another orchestrator goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...model.event import Command, Event
from ...model.events import NodeFacts, RunInterrupted, RunResumed
from ...model.trial import Trial
from . import gang_commands, planned_faults, shutdown
from .state import Ending, Node, Result, State, then, timer


def interrupted(trial: Trial, state: State, event: Event[RunInterrupted]) -> Result:
    """Asked for by the user; or found out afterwards (``nodes``: as they are now), because nothing could be written."""
    state = state if event.data.nodes is None else _with_found(state, event.data.nodes)
    if state.ending or state.stage == "suspended":
        return state, ()
    return shutdown.close(trial, planned_faults.let_go(state), Ending(outcome="interrupted"))


def resumed(trial: Trial, state: State, event: Event[RunResumed]) -> Result:
    """A new orchestrator with the whole time limit: an interrupted run goes on with the next epoch, any other just goes on."""
    if state.ending and state.stage != "suspended":
        return state, ()
    state = replace(state, resumes=state.resumes + 1)
    result: Result = state, (wall(trial, state),)
    if state.stage != "suspended":
        return result
    state = _with_found(gang_commands.next_epoch(state), event.data.nodes or {})
    state = replace(state, ending=None, step_at_start=state.best_step, hopeless="", unfit=False)
    return then((state, result[1]), lambda s: gang_commands.prepare(trial, s))


def _with_found(state: State, found: Mapping[str, NodeFacts]) -> State:
    """The nodes as they were found to be by a new orchestrator."""
    nodes = {
        name: Node(incarnation=str(found[name].incarnation), ordinal=found[name].ordinal or 0)
        if name in found
        else replace(node, alive=False, reachable=False)
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def wall(trial: Trial, state: State) -> Command:
    return timer(wall_key(state), trial.liveness.wall_s)


def wall_key(state: State) -> str:
    """The limit of the time that the newest orchestrator has; those of orchestrators before it count no more."""
    return f"wall/{state.resumes}" if state.resumes else "wall"
