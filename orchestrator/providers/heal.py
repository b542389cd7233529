"""Ends what an abandoned run left on a bed: faults that were not healed, gangs that go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..model.bed import BedSpec, BedStatus
from ..model.event import Command, Event, History
from ..model.provider import Provider
from . import asking

HEAL_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """``done``: one line for each thing that was ended; ``problems``: for each that could not be; ``heard``: events."""

    done: tuple[str, ...]
    problems: tuple[str, ...]
    heard: tuple[Event, ...] = ()


def heal(provider: Provider, bed: BedSpec, status: BedStatus, run: str, history: History, token: str) -> Healed:
    """Heal the faults that ``history`` leaves open, then stop the ranks of ``run`` on every node that answers."""
    begin = history.first("run.begin")
    ask = asking.bound(provider, bed, run, begin.value.get("cursors") if begin else None)
    heals = {f"{order.node}: {_fault(order)} healed": order for order in _heals(history, token)}
    stops = {f"{order.node}: ranks of {run} stopped": order for order in _stops(bed, status, history, token)}
    healed = ask.all(heals.values())
    answers = {**healed, **ask.all(stops.values())}
    return replace(_sorted({**heals, **stops}, answers), heard=tuple(ask.heard))


def _sorted(orders: Mapping[str, Command], answers: Mapping[str, Event | None]) -> Healed:
    wrong = {text: asking.problem(answers[order.key], order) for text, order in orders.items()}
    return Healed(
        done=tuple(text for text, problem in wrong.items() if not problem),
        problems=tuple(f"not {text}: {problem}" for text, problem in wrong.items() if problem),
    )


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
    epoch = max((event.epoch or 0 for event in history.events), default=0)
    for node in bed.nodes:
        found = status.node(node.name)
        if found.state == "busy":
            yield Command(
                f="gang.stop",
                key=f"heal-{token}/stop/{node.name}",
                node=node.name,
                incarnation=found.incarnation,
                epoch=epoch,
                deadline_s=STOP_S,
                value={"epoch": epoch},
            )


def _id(event: Event) -> str:
    return str(event.value.get("id") or str(event.key).split("/")[1])


def _fault(order: Command) -> str:
    return f"{order.value.get('fault') or 'fault'} ({order.value['id']})"
