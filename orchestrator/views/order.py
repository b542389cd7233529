"""Whether a history is whole: nothing dropped, doubled, reordered or answered without having been asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..model.event import Event, History
from ..model.events import RunInterrupted, RunResumed
from .command_outcomes import operations, unasked
from .findings import Finding, found
from .gangs import hosts_of


def disorder(history: History) -> tuple[Finding, ...]:
    """Everything that a journal of one run cannot contain."""
    return (*_numbering(history), *_writers(history), *_clocks(history), *_answers(history))


def writer(event: Event, hosts: Mapping[str, str] = MappingProxyType({})) -> tuple[str | None, ...]:
    """Who numbers its events by itself: the controller, a host's keeper, an agent's incarnation, a rank of an epoch.

    ``hosts``: node -> host; a node that is not in it is on the one host that there is.
    """
    source = event.source
    if source.writer == "keeper":
        return (source.writer, hosts.get(source.node or "", ""))
    if source.writer in ("ctl", "outside"):
        return (source.writer,)
    return (source.node, source.incarnation, source.writer)


def _numbering(history: History) -> Iterator[Finding]:
    for place, event in enumerate(history.events, start=1):
        if event.seq != place:
            yield found(f"event {event.seq} stands at place {place} of the history", event)
            return


def _writers(history: History) -> Iterator[Finding]:
    """Each writer counts up by one, the controller and ranks from 1; keepers and agents outlive runs.

    While a run had no controller, others may have had the keeper do something of which its history knows nothing.
    """
    last: dict[tuple[str | None, ...], int] = {}
    alone, hosts = False, hosts_of(history)
    for event in history.events:
        who, n = writer(event, hosts), event.source.n
        alone = alone or event.kind in (RunInterrupted, RunResumed)
        before = last.get(who)
        lasting = event.source.writer in ("keeper", "outside", "agent")
        expected = before + 1 if before is not None else n if lasting else 1
        if n < expected or (n > expected and not (alone and who[0] in ("keeper", "outside"))):
            name = " of ".join(part for part in (event.source.writer, event.source.node) if part)
            yield found(f"{name} wrote its event {n} ({event.f}) where {expected} was due", event)
        last[who] = max(n, before or 0)


def _clocks(history: History) -> Iterator[Finding]:
    """The clock of one writer on one boot never goes back. The controller stamps what it decides, then writes it in turn."""
    last: dict[tuple[str | None, ...], Event] = {}
    hosts = hosts_of(history)
    for event in history.events:
        if event.source.writer == "ctl":
            continue
        who = (*writer(event, hosts), event.at.boot)
        before = last.get(who)
        if before is not None and event.at.mono < before.at.mono:
            yield found(f"{event.source.writer} wrote {event.f} with a time before its {before.f}", before, event)
        last[who] = event


def _answers(history: History) -> Iterator[Finding]:
    """Every outcome was asked for on that node; a command is asked and answered once, and once more for each resume.

    A decision has a key as well, and is taken once.
    """
    resumes = len(history.of(RunResumed))
    keys = Counter((e.f, e.key) for e in history.events if e.key is not None and e.type in ("note", "info"))
    for (f, key), times in keys.items():
        if times > 1:
            yield found(f"{f} {key} was decided {times} times", *history.of(f))
    for event in unasked(history):
        yield found(f"{event.type} of {event.f} {event.key} was never asked for", event)
    for op in operations(history):
        yield from _answered(op.f, op.key, op.invokes, resumes)
        answers = tuple(event for event in op.outcomes if event.type != "info")
        yield from _answered(f"the answer to {op.f}", op.key, answers, resumes)
        yield from (
            found(f"{event.f} {event.key} was asked of {op.node} and answered by {event.node}", op.invoke, event)
            for event in op.outcomes
            if event.node != op.node
        )


def _answered(what: str, key: str, events: tuple[Event, ...], resumes: int) -> Iterator[Finding]:
    if len(events) > 1 + resumes:
        yield found(f"{what} {key} stands {len(events)} times in the history", *events)
