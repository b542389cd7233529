"""Interrupt a run, and resume it with another orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...model.event import Command, Event
from ...model.events import NodeFacts, RunInterrupted, RunResumed
from ...model.trial import Trial
from . import faults, gang, shutdown
from .state import Ending, Node, Result, State, then, timer


def interrupted(trial: Trial, state: State, event: Event[RunInterrupted]) -> Result:
    """Interrupted by the user, or detected later because the journal could not be written (``nodes``: as observed)."""
    state = state if event.data.nodes is None else _with_observed_nodes(state, event.data.nodes)
    if state.ending or state.stage == "suspended":
        return state, ()
    return shutdown.close(trial, faults.release_held(state), _interrupted(event))


def _interrupted(event: Event[RunInterrupted]) -> Ending:
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
    state = _with_observed_nodes(gang.next_epoch(state), event.data.nodes or {})
    state = replace(state, ending=None, step_at_start=state.best_step, hopeless="", unfit=False, bed_ended="")
    state = replace(state, unresponsive=frozenset())
    return then((state, result[1]), lambda s: gang.prepare(trial, s))


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
