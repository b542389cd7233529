"""Recovery: replace lost nodes by the trial's policies in order, on hosts that can be trusted, or go on without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import views
from ...model.event import Event
from ...model.events import NodeExit, NodeSilent, RankError, RankExit
from ...model.frozen import dataclass, field, replace
from ...model.trial import REPLACE, SHRINK, Trial
from . import faults, replace_policy
from .state import Ending, State

#: This many recoveries in a row without a new step are a crash loop.
STALE_LIMIT = 2
SCRIPT = "script"
#: Kinds of rank.error that a restart does not fix, and the reason.
_HOPELESS: Mapping[str, str] = {
    "wrong result": "a wrong result is not measured again",
    "memory": "a restart would end in the same way",
}
#: Errors of a script that come again if it makes them before any step.
_BROKEN = frozenset({
    "SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError", "AttributeError", "TypeError", "ImportError",
    "ModuleNotFoundError",
})  # fmt: skip
#: Kinds whose cause is the hosts, not the system under test.
_UNFIT = ("memory",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The slots of the next attempt and the policy per lost node, or the reason why recovery is refused.

    ``is_irreplaceable``: it is refused because no policy replaces a lost node; ``lacks_spare``: where a spare has the place of a node
    that the run must not use. ``absent``: the nodes without which the next attempt runs; ``joined``: those that are there again.
    ``chosen``: lost node -> the node on another host that the policy ``replace`` chose.
    """

    slots: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    lacks_spare: bool = False
    is_irreplaceable: bool = False
    chosen: Mapping[str, str] = field(default_factory=dict)


def decide(trial: Trial, state: State, waited_s: float = 0.0) -> Decision:
    """Choose a replacement for every unusable node; ranks that failed on live nodes restart in place.

    ``waited_s``: how long recovery has waited for a host with room.

    A node that is given up leaves no gap: the group ranks of the others are dense and in the same order.
    """
    if refused := _refusal(trial, state):
        return Decision(refused=refused)
    slots, spares = list(state.slots), [name for name in state.spares if state.usable(name)]
    policies: dict[str, str] = {}
    chosen_nodes: dict[str, str] = {}
    for name in state.slots:
        if state.usable(name):
            continue
        may_shrink = sum(map(bool, slots)) > trial.world.least_nodes
        chosen = choose_replacement(state, name, spares, may_shrink=may_shrink, slots=slots)
        if chosen is None:
            why = _irreplaceable(trial, state, name, slots, waited_s)
            return Decision(refused=why, lacks_spare=bool(_substitutes(state)), is_irreplaceable=True)
        policies[name], replacement = chosen
        slots = [replacement if slot == name else slot for slot in slots]
        chosen_nodes |= {name: replacement} if policies[name] == REPLACE else {}
        spares = [spare for spare in spares if spare != replacement]
    slots = [slot for slot in slots if slot]
    absent = (*state.absent, *(name for name, policy in policies.items() if policy == SHRINK))
    joined, absent = rejoin(trial, state, len(slots), absent)
    return Decision(
        slots=(*slots, *joined),
        spares=tuple(spares),
        absent=absent,
        joined=joined,
        policies=policies,
        chosen=chosen_nodes,
    )


def rejoin(trial: Trial, state: State, count: int, absent: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(absent nodes that rejoin a gang of ``count`` nodes, behind the others; those that stay absent)."""
    joined = tuple(name for name in absent if state.usable(name))[: trial.world.nodes - count]
    return joined, tuple(name for name in absent if name not in joined)


def _irreplaceable(trial: Trial, state: State, name: str, slots: Sequence[str], waited_s: float) -> str:
    """Return why no policy replaces a lost node."""
    left = sum(state.usable(node) for node in state.slots)
    used = "".join(
        f"; the spare {spare} has the place of {node}, which {state.plan.placement.excluded.get(node, 'takes no part')}"
        for node, spare in _substitutes(state).items()
    )
    if SHRINK in state.plan.policy and left < trial.world.least_nodes:
        verb = "are" if left != 1 else "is"
        return (
            f"{left} node{'s' * (left != 1)} {verb} left, and the trial needs at least {trial.world.least_nodes}{used}"
        )
    why = f": {state.unrestartable[name]}" if name in state.unrestartable else ""
    if REPLACE in state.plan.policy:
        after = f" after {waited_s:g} s" if waited_s else ""
        why = f": no other host has room{after}: {replace_policy.describe(replace_policy.refusals(state, name, slots))}"
    return f"no policy of {list(state.plan.policy)} can replace {name}{why}{used}"


def _substitutes(state: State) -> Mapping[str, str]:
    """Node that the run must not use -> the spare that has its slot, where a spare would replace a lost node."""
    if "spare" not in state.plan.policy:
        return {}
    return {node: name for node, name in state.plan.substitutes.items() if state.plan.nodes[name].role == "spare"}


def with_unrestartable(state: State, event: Event) -> State:
    """The state after the node of ``event`` could not be killed or started again: it is not tried again."""
    reason = "the bed has ended" if state.bed_ended else f"{event.f} failed: {event.data.reason or event.type}"
    name = str(event.node)
    host, unrestartable = state.host(name), {**state.unrestartable, name: reason}
    is_unresponsive = event.type == "info" and not state.silent_host(host)
    unresponsive = state.unresponsive | {host} if is_unresponsive else state.unresponsive
    return replace(state, unrestartable=unrestartable, unresponsive=unresponsive)


def with_hopeless_error(state: State, error: RankError) -> State:
    """The state after a rank ended with ``error``. The first error that a restart cannot fix is kept."""
    kind = error.kind or ""
    if kind in _BROKEN and not state.best_step and not state.hopeless:
        return replace(state, hopeless=f"{kind} before the first step: {_HOPELESS['memory']}")
    if kind not in _HOPELESS or state.hopeless:
        return state
    return replace(state, hopeless=f"{error.message}; {_HOPELESS[kind]}", unfit=kind in _UNFIT)


def with_failure(state: State, event: Event[RankError | RankExit]) -> State:
    """The state after a rank of the attempt failed; the first failure counts."""
    return state if state.failed_at is not None else replace(state, failed_at=event.t)


def with_loss(state: State, event: Event) -> State:
    """The state after a node exited, or after its silence was noticed: the loss is as old as the silence."""
    if event.kind not in (NodeExit, NodeSilent):
        return state
    silent_s = (event.data.silent_s or 0.0) if isinstance(event.data, NodeSilent) else 0.0
    return replace(state, lost_at={str(event.node): event.t - silent_s, **state.lost_at})


def defeat(state: State, lost: tuple[str, ...], decision: Decision) -> Ending:
    """A finding about the system under test, unless a node was lost that is not the target of a planned fault.

    Where a rank failed by itself before, that is the root cause, as the check ``finished`` states it; then a loss is no failure of
    the infrastructure, unless recovery is refused because of it.
    """
    ranks = ", ".join(map(str, sorted(state.failed)))
    what = (
        f"rank{'s' * (len(state.failed) > 1)} {ranks} failed"
        if ranks
        else state.standstill or "the worker group stalled"
    )
    is_later = bool(lost and state.failed) and not _explains(state, lost)
    if is_later:
        what += f"; then {', '.join(lost)} {'were' if len(lost) > 1 else 'was'} lost"
    elif lost:
        what = f"lost {', '.join(lost)}"
    counted = () if is_later and not decision.is_irreplaceable else lost
    unplanned = state.unfit or [name for name in counted if name not in faults.targets(state)]
    refused = decision.refused
    reason = state.hopeless if state.hopeless and not lost else f"{what}; {refused}"
    return Ending(outcome="failed", reason=reason, kind="infrastructure" if unplanned else "finding")


def _explains(state: State, lost: tuple[str, ...]) -> bool:
    """Return whether one of these nodes was lost so early that the failures of ranks follow from it.

    One that was given up because it did not respond in time has no time of its loss, and may have been silent before.
    """
    if state.failed_at is None:
        return True
    until = state.failed_at + views.WINDOW_S
    return any(state.lost_at.get(name, 0.0) <= until for name in lost)


def _refusal(trial: Trial, state: State) -> str:
    if state.plan.policy == ("none",):
        return "the recovery policy is none"
    if state.hopeless:
        return state.hopeless
    if state.restarts >= trial.recovery.max_restarts:
        return f"the budget of {trial.recovery.max_restarts} restarts is spent"
    if stale(trial, state) >= STALE_LIMIT:
        return f"crash loop: {STALE_LIMIT} starts in a row reached no new step (the last new one is {state.best_step})"
    return ""


def stale(trial: Trial, state: State) -> int:
    """The number of consecutive attempts, including the current one, without a new step.

    An attempt that a planned fault ended is not counted: it says nothing about the workload; nor is one whose nodes could not be
    started, unless a rank failed. Always 0 for a script, as under torchrun: its steps are those of one process, so the budget of
    restarts is the only limit.
    """
    uncounted = state.plan.last_step is None and not state.best_step
    if trial.workload == SCRIPT or uncounted or state.best_step > state.step_at_start:
        return 0
    return state.stale + ((state.is_started or bool(state.failed)) and not faults.ended_attempt(trial, state))


def choose_replacement(
    state: State, name: str, spares: Sequence[str] | None = None, *, may_shrink: bool = False, slots: Sequence[str] = ()
) -> tuple[str, str] | None:
    """Return (policy, node): the first policy of the plan that works now. The node is empty where the gang shrinks.

    If none works, the node restarts on its silent host; None where that is not allowed either.

    ``spares``: None for all that are usable; ``may_shrink``: enough nodes remain without a replacement; ``slots``: as decided so far.
    """
    if spares is None:
        spares = [spare for spare in state.spares if state.usable(spare)]
    may_restart = "restart" in state.plan.policy and name not in state.unrestartable
    is_reachable = not state.silent_host(state.host(name))
    for policy in state.plan.policy:
        if policy == "spare" and (spare := _spare(state, name, spares)):
            return policy, spare
        if policy == "restart" and may_restart and is_reachable:
            return policy, name
        if policy == REPLACE and (new := replace_policy.choose(state, name, slots)):
            return policy, new
        if policy == SHRINK and may_shrink:
            return policy, ""
    return ("restart", name) if may_restart else None


def _spare(state: State, lost: str, spares: Sequence[str]) -> str | None:
    """The best warm spare: on the same host if only this node exited there, else on another; never on a silent host."""
    lost_host = state.host(lost)
    unusable = [name for name, node in state.nodes.items() if state.host(name) == lost_host and not node.usable]
    prefers_same_host = unusable == [lost] and not state.nodes[lost].alive

    def rank(name: str) -> tuple[bool, bool]:
        return state.nodes[name].suspect, (state.host(name) == lost_host) is not prefers_same_host

    return min((name for name in spares if not state.silent_host(state.host(name))), key=rank, default=None)
