"""Ends the leftovers of an abandoned run on a bed: open faults and running gangs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..core.bed import diff, selection
from ..model.bed import BedSpec, BedStatus
from ..model.event import Command, Event, History, command
from ..model.events import FaultAct, FaultHeal, FaultHealDone, GangStart, GangStop, StoreOpen
from ..model.frozen import dataclass, replace
from ..model.provider import Provider
from . import apply, bed_commands

HEAL_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """``done``: one line per fault healed or gang stopped; ``problems``: one per failure."""

    done: tuple[str, ...]
    problems: tuple[str, ...]


def mend(
    provider: Provider, bed: BedSpec, run: str, history: History, token: str, *, drained: Collection[str] = ()
) -> Healed:
    """Heal, then start nodes that are missing or still stopped, as `up` would, so that the bed is as `up` left it.

    No node is started on the ``drained`` hosts. Raises InfrastructureError with a line per node that did not come up.
    """
    healed = heal(provider, bed, run, history, token)
    hosts = [host for host in selection.host_names(bed) if host not in drained]
    changes = selection.limit(diff.diff(bed, replace(provider.observe(bed), open_run=""), bed), bed, hosts)
    if changes.empty:
        return healed
    apply.apply(provider, bed, changes, token=f"heal-{token}")
    done = [
        f"{' '.join(names)}: {text}"
        for text, names in (
            ("ended, its run is over", [change.node for change in changes.of("remove")]),
            ("ready again", [change.node for change in changes.changes if change.action in ("create", "replace")]),
        )
        if names
    ]
    return Healed(done=(*healed.done, *done), problems=healed.problems)


def heal(provider: Provider, bed: BedSpec, run: str, history: History, token: str) -> Healed:
    """Heal the faults that ``history`` leaves open, then stop the ranks of ``run`` on every node that has any.

    The commands belong to the bed and not to the run: if the run is resumed, its history has no foreign outcomes.
    """
    commands = bed_commands.bind(provider, bed)
    heals = {f"{order.node}: {_fault(order)} undone": order for order in _heals(history, token)}
    outcomes = dict(commands.perform(heals.values()))
    status = provider.observe(bed)  # a paused node is seen to be busy only after it was healed
    stops = {f"{order.node}: ranks of {run} stopped": order for order in _stops(bed, status, history, token)}
    outcomes |= commands.perform(stops.values())
    return _results({**heals, **stops}, outcomes)


def _results(orders: Mapping[str, Command], outcomes: Mapping[str, Event | None]) -> Healed:
    problems = {text: bed_commands.problem(outcomes[order.key], order) for text, order in orders.items()}
    idle = {text for text, order in orders.items() if order.kind is GangStop and not _has_killed(outcomes[order.key])}
    return Healed(
        done=tuple(text for text, problem in problems.items() if not problem and text not in idle),
        problems=tuple(f"not {text}: {problem}" for text, problem in problems.items() if problem),
    )


def _has_killed(outcome: Event | None) -> bool:
    return bool(outcome is not None and getattr(outcome.data, "killed", None))


def _heals(history: History, token: str) -> Iterator[Command[FaultHeal]]:
    """One command per injection that was begun and whose healing was never confirmed."""
    healed = {_id(event) for event in history.of(FaultHealDone)}
    for event in history.of(FaultAct):
        if _id(event) not in healed:
            order = event.data
            yield command(
                FaultHeal(id=_id(event), fault=order.fault, act=order.act),
                f"heal-{token}/{_id(event)}",
                node=event.node,
                epoch=event.epoch,
                deadline_s=HEAL_S,
            )


def _stops(bed: BedSpec, status: BedStatus, history: History, token: str) -> Iterator[Command]:
    """One command per node with ranks, or whose ranks may still be starting: agents perform commands in order."""
    epoch = max((event.epoch or 0 for event in history.events), default=0)
    started = {event.node for event in history.of(GangStart, StoreOpen) if event.epoch == epoch}
    for node in bed.all_nodes:
        node_status = status.node(node.name)
        if node_status.state == "busy" or (node_status.state == "warm" and node.name in started):
            yield command(
                GangStop(epoch=epoch),
                f"heal-{token}/stop/{node.name}",
                node=node.name,
                incarnation=node_status.incarnation,
                deadline_s=STOP_S,
            )


def _id(event: Event) -> str:
    return str(getattr(event.data, "id", None) or str(event.key).split("/")[1])


def _fault(order: Command[FaultHeal]) -> str:
    return f"{order.data.fault or 'fault'} ({order.data.id})"
