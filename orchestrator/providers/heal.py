"""Ends what an abandoned run left on a bed: faults that were not healed, gangs that go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.bed import diff
from ..model.bed import BedSpec, BedStatus
from ..model.event import Command, Event, History
from ..model.provider import Provider
from . import apply, bed_commands

HEAL_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """``done``: one line for each thing that was ended; ``problems``: for each that could not be."""

    done: tuple[str, ...]
    problems: tuple[str, ...]


def mend(provider: Provider, bed: BedSpec, run: str, history: History, token: str) -> Healed:
    """``heal``, and then start the nodes that are missing or still stopped, as `up` would. The bed is as `up` left it.

    Raises InfrastructureError with a line per node that did not come up.
    """
    healed = heal(provider, bed, run, history, token)
    changes = diff.diff(bed, provider.observe(bed), bed)
    if changes.empty:
        return healed
    apply.apply(provider, bed, changes, token=f"heal-{token}")
    named = " ".join(change.node for change in changes.changes if change.action != "keep")
    return Healed(done=(*healed.done, f"{named}: warm again"), problems=healed.problems)


def heal(provider: Provider, bed: BedSpec, run: str, history: History, token: str) -> Healed:
    """Heal the faults that ``history`` leaves open, then stop the ranks of ``run`` on every node that has any.

    It is asked in the bed's name: should the run go on, its history shall not hold answers to what it never asked.
    """
    ask = bed_commands.bound(provider, bed)
    heals = {f"{order.node}: {_fault(order)} healed": order for order in _heals(history, token)}
    answers = dict(ask.all(heals.values()))
    status = provider.observe(bed)  # a node that was paused has only now been found to be busy
    stops = {f"{order.node}: ranks of {run} stopped": order for order in _stops(bed, status, history, token)}
    answers |= ask.all(stops.values())
    return _sorted({**heals, **stops}, answers)


def _sorted(orders: Mapping[str, Command], answers: Mapping[str, Event | None]) -> Healed:
    wrong = {text: bed_commands.problem(answers[order.key], order) for text, order in orders.items()}
    idle = {text for text, order in orders.items() if order.f == "gang.stop" and not _killed(answers[order.key])}
    return Healed(
        done=tuple(text for text, problem in wrong.items() if not problem and text not in idle),
        problems=tuple(f"not {text}: {problem}" for text, problem in wrong.items() if problem),
    )


def _killed(answer: Event | None) -> bool:
    return bool(answer and answer.value.get("killed"))


def _heals(history: History, token: str) -> Iterator[Command]:
    """One order per injection that was begun and whose healing was never confirmed."""
    healed = {_id(event) for event in history.of("fault.heal") if event.type == "ok"}
    for event in history.of("fault.act"):
        if event.type == "invoke" and _id(event) not in healed:
            yield Command(
                f="fault.heal",
                key=f"heal-{token}/{_id(event)}",
                node=event.node,
                epoch=event.epoch,
                deadline_s=HEAL_S,
                value={"id": _id(event), "fault": event.value.get("fault"), "act": event.value.get("act", {})},
            )


def _stops(bed: BedSpec, status: BedStatus, history: History, token: str) -> Iterator[Command]:
    """One order per node with ranks; also where ranks were ordered, but may not be there yet: orders are taken in turn."""
    epoch = max((event.epoch or 0 for event in history.events), default=0)
    started = {event.node for event in history.of("gang.start", "store.open") if event.epoch == epoch}
    for node in bed.nodes:
        node_status = status.node(node.name)
        if node_status.state == "busy" or (node_status.state == "warm" and node.name in started):
            yield Command(
                f="gang.stop",
                key=f"heal-{token}/stop/{node.name}",
                node=node.name,
                incarnation=node_status.incarnation,
                deadline_s=STOP_S,
                value={"epoch": epoch},
            )


def _id(event: Event) -> str:
    return str(event.value.get("id") or str(event.key).split("/")[1])


def _fault(order: Command) -> str:
    return f"{order.value.get('fault') or 'fault'} ({order.value['id']})"
