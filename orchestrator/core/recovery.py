"""Who replaces a lost node: the policies, in the order that the trial gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model.trial import Trial
from .state import State

#: So many recoveries in a row without a step that was never done before are a crash loop.
STALE_LIMIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The slots of the next epoch and the policy per lost node, or why there is none (``refused``)."""

    slots: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""


def decide(trial: Trial, state: State) -> Decision:
    """What to do about the slots whose nodes are not usable; ranks that failed on live nodes restart in place."""
    if refused := _refusal(trial, state):
        return Decision(refused=refused)
    slots, spares, policies = list(state.slots), [name for name in state.spares if state.usable(name)], {}
    for slot, name in enumerate(state.slots):
        if state.usable(name):
            continue
        policy = _policy(state, name, spares)
        if policy is None:
            return Decision(refused=f"no policy of {list(state.plan.policy)} can replace {name}")
        policies[name] = policy
        if policy == "spare":
            slots[slot] = spares.pop(0)
    return Decision(slots=tuple(slots), spares=tuple(spares), policies=policies)


def _refusal(trial: Trial, state: State) -> str:
    if state.plan.policy == ("none",):
        return "the recovery policy is none"
    if state.unsaved:
        return f"{state.unsaved}; another start would end there again"
    if state.restarts >= trial.recovery.max_restarts:
        return f"the budget of {trial.recovery.max_restarts} restarts is spent"
    if stale(state) >= STALE_LIMIT:
        return f"crash loop: {STALE_LIMIT} starts in a row reached no new step (the last new one is {state.best_step})"
    return ""


def stale(state: State) -> int:
    """How many gangs in a row, this one included, reached no step that was never reached before."""
    return 0 if state.best_step > state.step_at_start else state.stale + 1


def _policy(state: State, name: str, spares: list[str]) -> str | None:
    for policy in state.plan.policy:
        if policy == "spare" and spares:
            return "spare"
        if policy == "restart" and name not in state.unrestartable:
            return "restart"
    return None
