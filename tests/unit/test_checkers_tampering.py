"""A history in which an event was dropped, doubled or reordered does not pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from orchestrator.model.event import Event
from orchestrator.model.run import Run
from orchestrator.views import order

from . import history
from .verdicts import NAMES, ask

Renumber = Callable[[Run, list[Event]], Run]


def in_the_journal(run: Run, events: list[Event]) -> Run:
    """Somebody edited the file."""
    return history.with_events(run, events, number=False)


def before_the_journal(run: Run, events: list[Event]) -> Run:
    """A line of a node got lost, or came twice, or late: the journal numbers what it gets."""
    return history.with_events(run, events)


def by_the_engine(run: Run, events: list[Event]) -> Run:
    """The orchestrator did not do its work: its own numbers have no hole either."""
    numbers = itertools.count(1)
    own = [
        dataclasses.replace(e, source=dataclasses.replace(e.source, n=next(numbers))) if e.source.writer == "ctl" else e
        for e in events
    ]
    return history.with_events(run, own)


#: The last words of a writer that was killed or replaced may be lost without a trace; they prove nothing that is missed:
#: two other ranks were inside, and a node that answers was ready. A node may be suspected as often as one likes.
HARMLESS = {
    ("dropped", "rank.inside"), ("dropped", "agent.ready"),
    ("dropped", "node.suspect"), ("doubled", "node.suspect"), ("doubled", "node.silent"),
}  # fmt: skip


@pytest.mark.parametrize("renumber", [in_the_journal, before_the_journal, by_the_engine])
@pytest.mark.parametrize(
    "run", [history.reference(), history.twice(), history.paused()], ids=["once", "twice", "paused"]
)
def test_an_event_dropped_doubled_or_reordered_is_caught_wherever_it_stands(run: Run, renumber: Renumber) -> None:
    assert not caught(renumber(run, list(run.history.events)))
    missed = {(how, e.f) for how, e, events in _apt(run, renumber) if not caught(renumber(run, events))}
    assert missed <= (set() if renumber is in_the_journal else HARMLESS)


def _apt(run: Run, renumber: Renumber) -> Iterator[tuple[str, Event, list[Event]]]:
    """The engine speaks for itself only, and may take two decisions of one moment in either order."""
    for how, event, events in mutants(run.history.events):
        if renumber is not by_the_engine or (event.source.writer == "ctl" and how != "swapped"):
            yield how, event, events


def mutants(events: Sequence[Event]) -> Iterator[tuple[str, Event, list[Event]]]:
    """Every event dropped, doubled, and swapped with the next one of its writer."""
    for index, event in enumerate(events):
        yield "dropped", event, [*events[:index], *events[index + 1 :]]
        yield "doubled", event, [*events[: index + 1], *events[index:]]
        same = (i for i in range(index + 1, len(events)) if order.writer(events[i]) == order.writer(event))
        other = next(same, None)
        if other is not None:
            swapped = list(events)
            swapped[index], swapped[other] = swapped[other], swapped[index]
            yield "swapped", event, swapped


def caught(mutant: Run) -> bool:
    """Whether some verdict is not a pass; the checkers that see most are asked first."""
    first = ("membership", "no-hang", "finished", "no-orphans", "fault-verified", *NAMES)
    return any(ask(mutant, name).outcome != "pass" for name in first)
