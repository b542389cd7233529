"""A script that stands still: its ranks are inspected before its gang is called stalled.

A script may evaluate, save or wait for data without a step. So it has stalled only if no rank of any node uses its CPU or
moves data, but for those that a fault lets spin; if some ranks work while others have waited for ``PEERS_S``; or if it exceeds
the limit that the user has set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ...model.event import Event
from ...model.events import CommandFailed, GangBusy, GangInspectDone, GangJoining, GangQuiet, GangStalled
from ...model.trial import Trial
from ...views import standing
from ...views.standing import rank_names, verb
from . import faults, gang_commands
from .state import Inspection, Result, State, note

#: A rank that uses more CPU seconds, or moves more bytes, within a second is at work.
IDLE_CPU_S, IDLE_BYTES = 0.02, 4096
#: The default limit of NCCL for a collective: one rank may evaluate so long while the others wait.
PEERS_S = 600.0
STOPPED = ("T", "t")


def on_quiet(trial: Trial, state: State, event: Event[GangQuiet]) -> Result:
    """Inspect the ranks of all nodes. Ranks that have not all joined get no signal: it would interrupt torch's search for the store."""
    if not state.active or event.epoch != state.epoch or state.inspection is not None:
        return state, ()
    count = state.inspections + 1
    if event.data.is_joining:
        return _on_unjoined(trial, replace(state, inspections=count), event.data)
    names = [name for name in dict.fromkeys(state.slots) if state.usable(name)]
    orders = tuple(
        gang_commands.inspect_command(state, name, count, stacks=bool(event.data.is_strict)) for name in names
    )
    inspection = Inspection(quiet=event.data, awaited=frozenset(order.key for order in orders))
    return replace(state, inspections=count, inspection=inspection), orders


def on_inspected(trial: Trial, state: State, event: Event[GangInspectDone | CommandFailed]) -> Result:
    """Decide when the last reply is there: the gang has stalled, or it is busy."""
    inspection = state.inspection
    if inspection is None or event.key not in inspection.awaited:
        return state, ()
    is_known = isinstance(event.data, GangInspectDone)
    inspection = replace(
        inspection,
        awaited=inspection.awaited - {str(event.key)},
        replies=(*inspection.replies, event.data) if isinstance(event.data, GangInspectDone) else inspection.replies,
        silent=inspection.silent + (not is_known or _has_no_worker(state, event)),
    )
    if inspection.awaited or not state.active:
        return replace(state, inspection=inspection if state.active else None), ()
    state = replace(state, inspection=None)
    busy = _busy(inspection)
    spinning = tuple(rank for rank in busy if rank in faults.spinning_ranks(trial, state))
    if 0 < len(busy) < sum(len(reply.states) for reply in inspection.replies) and inspection.quiet.since_s >= PEERS_S:
        spinning = busy
    busy = tuple(rank for rank in busy if rank not in spinning)
    reason, culprit = describe(inspection.quiet, inspection.replies, spinning)
    reason = "; ".join((reason, *_mismatches(trial, state)))
    if (busy or inspection.silent) and not inspection.quiet.is_strict:
        report: GangBusy | GangStalled = GangBusy(ranks=busy, reason=_busy_reason(inspection, busy))
        return state, (note(report, f"e{state.epoch}/busy{state.inspections}", epoch=state.epoch),)
    report = GangStalled(since_s=inspection.quiet.since_s, reason=reason, culprit=culprit)
    return replace(state, standstill=reason), (note(report, f"e{state.epoch}/stalled", epoch=state.epoch),)


def _on_unjoined(trial: Trial, state: State, quiet: GangQuiet) -> Result:
    """Report who has not joined, if a rank has tried to."""
    if state.stage != "start" or not state.joining:
        return state, ()
    world = state.world_size(trial)
    parts = (*standing.missing(state.joining, state.joined, world), *_mismatches(trial, state))
    reason = f"{len(state.joined)} of {world} ranks have joined after {quiet.since_s:.0f} s: {'; '.join(parts)}"
    report = GangJoining(since_s=quiet.since_s, reason=reason)
    return state, (note(report, f"e{state.epoch}/joining{state.inspections}", epoch=state.epoch),)


def _mismatches(trial: Trial, state: State) -> tuple[str, ...]:
    """Return what keeps the ranks apart while they join."""
    if state.stage != "start":
        return ()
    return tuple(standing.mismatches(state.joining, state.world_size(trial), state.store[1] if state.store else None))


def _has_no_worker(state: State, event: Event[GangInspectDone | CommandFailed]) -> bool:
    """Return whether the launcher of a node has no worker now: it starts one, or waits for the other launchers."""
    return state.plan.has_launcher and isinstance(event.data, GangInspectDone) and not event.data.states


def describe(
    quiet: GangQuiet, replies: Collection[GangInspectDone], spinning: tuple[int, ...] = ()
) -> tuple[str, int | None]:
    """Describe where the ranks stand, and return the first rank that did not enter the collective in which others wait.

    ``spinning``: ranks that use their CPU without a step.
    """
    stacks = {int(rank): frames for reply in replies for rank, frames in reply.stacks.items()}
    states = {int(rank): state for reply in replies for rank, state in reply.states.items()}
    stopped = sorted(rank for rank, state in states.items() if state in STOPPED)
    running = {rank: frames for rank, frames in stacks.items() if rank not in stopped}
    waiting, elsewhere = standing.groups(running), standing.absent(running)
    left = tuple(quiet.left or ())
    parts = [f"{rank_names(left)} {verb(left, 'has', 'have')} left" if left else ""]
    parts += [f"{rank_names(stopped)} {verb(stopped, 'is', 'are')} stopped by a signal" if stopped else ""]
    parts += [f"rank {rank} is at {standing.position(stacks[rank])}, in no collective" for rank in elsewhere[:3]]
    parts += standing.waiting_text(waiting)
    if spinning:
        parts.append(
            f"{rank_names(spinning)} {verb(spinning, 'uses its CPU and makes', 'use their CPU and make')} no step"
        )
    if not any(stacks.values()):
        parts.append("the others wait" if spinning else "no rank uses its CPU; no stack could be taken")
    parts += _missing_stacks(replies, stopped)
    culprits = left or stopped or spinning or (elsewhere if waiting else ())
    since = (
        f"no step for {quiet.since_s:.0f} s" if not left else f"the worker group stands still for {quiet.since_s:.0f} s"
    )
    return f"{since}: {'; '.join(filter(None, parts))}", min(culprits, default=None)


def _missing_stacks(replies: Iterable[GangInspectDone], stopped: Collection[int]) -> Iterator[str]:
    reasons: dict[str, list[int]] = {}
    for reply in replies:
        for rank, reason in (reply.no_stack or {}).items():
            reasons.setdefault(reason, []).append(int(rank))
    for reason, ranks in reasons.items():
        if not set(ranks) <= set(stopped):
            yield f"no stack of {rank_names(sorted(ranks))}: {reason}"


def _busy(inspection: Inspection) -> tuple[int, ...]:
    return tuple(
        sorted(
            int(rank)
            for reply in inspection.replies
            for rank, cpu_s in reply.cpu_s.items()
            if reply.states.get(rank) not in STOPPED
            and (cpu_s >= IDLE_CPU_S * reply.window_s or reply.bytes.get(rank, 0) >= IDLE_BYTES)
        )
    )


def _busy_reason(inspection: Inspection, busy: tuple[int, ...]) -> str:
    quiet = inspection.quiet
    since = f"no step for {quiet.since_s:.0f} s"
    if quiet.left:
        since = f"{rank_names(quiet.left)} left {quiet.since_s:.0f} s ago"
    is_unstarted = any(not reply.states for reply in inspection.replies)
    doubt = "a launcher has no worker now" if is_unstarted else "a node does not respond"
    return f"{since}, but {rank_names(busy)} {verb(busy, 'works', 'work')}" if busy else f"{since}; {doubt}"
