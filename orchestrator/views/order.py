"""Checks that a history is complete: nothing dropped, doubled or reordered, and no outcome without its command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..model import events
from ..model.event import Event, History
from .command_outcomes import operations, unrequested
from .findings import Finding, finding
from .gangs import hosts_of

#: The log of the keeper on the controller; those of other hosts have their name.
_ONLY_LOG = "keeper/events.jsonl"


def disorder(history: History) -> tuple[Finding, ...]:
    """The contradictions that the journal of one run cannot contain."""
    return (*_numbering(history), *_writers(history), *_clocks(history), *_answers(history))


def writer(event: Event, hosts: Mapping[str, str] = MappingProxyType({})) -> tuple[str | None, ...]:
    """Return which writer numbers its own events: the controller, a host's keeper, an agent's incarnation, a rank of an attempt.

    ``hosts``: node -> host; a node that is not in it is on the only host.
    """
    source = event.source
    if source.writer == "keeper":
        return (source.writer, hosts.get(source.node or "", ""))
    if source.writer in ("ctl", "outside"):
        return (source.writer,)
    return (source.node, source.incarnation, source.writer)


def _hosts_of_keepers(history: History) -> Mapping[str, str]:
    """Node -> the host of its keeper. All hosts of a bed on the controller itself have one keeper, whose log is the only one."""
    begin = history.first(events.RunBegin)
    return {} if begin and _ONLY_LOG in (begin.data.cursors or {}) else hosts_of(history)


def _numbering(history: History) -> Iterator[Finding]:
    for position, event in enumerate(history.events, start=1):
        if event.seq != position:
            yield finding(f"event {event.seq} is at position {position} of the history", event)
            return


def _writers(history: History) -> Iterator[Finding]:
    """Each writer counts up by one, the controller and ranks from 1; keepers and agents outlive runs.

    While a run had no controller, a keeper may have served another one, so that the history misses some of its events.
    """
    last: dict[tuple[str | None, ...], int] = {}
    interrupted, hosts = False, _hosts_of_keepers(history)
    for event in history.events:
        who, n = writer(event, hosts), event.source.n
        interrupted = interrupted or event.kind in (events.RunInterrupted, events.RunResumed)
        before = last.get(who)
        lasting = event.source.writer in ("keeper", "outside", "agent")
        expected = before + 1 if before is not None else n if lasting else 1
        if n < expected or (n > expected and not (interrupted and who[0] in ("keeper", "outside"))):
            name = " of ".join(part for part in (event.source.writer, event.source.node) if part)
            yield finding(f"{name} wrote its event {n} ({event.f}) instead of {expected}", event)
        last[who] = max(n, before or 0)


def _clocks(history: History) -> Iterator[Finding]:
    """The clock of one writer on one boot never goes back. The controller is exempt: it writes later than it stamps."""
    last: dict[tuple[str | None, ...], Event] = {}
    hosts = _hosts_of_keepers(history)
    for event in history.events:
        if event.source.writer == "ctl":
            continue
        who = (*writer(event, hosts), event.at.boot)
        before = last.get(who)
        if before is not None and event.at.mono < before.at.mono:
            yield finding(f"{event.source.writer} wrote {event.f} with a time before its {before.f}", before, event)
        last[who] = event


def _answers(history: History) -> Iterator[Finding]:
    """Every outcome has its command on that node; commands and outcomes occur once, and once more for each resume.

    A decision has a key as well and occurs once.
    """
    resumes = len(history.of(events.RunResumed))
    keys = Counter((e.f, e.key) for e in history.events if e.key is not None and e.type in ("note", "info"))
    for (f, key), times in keys.items():
        if times > 1:
            yield finding(f"{f} {key} was decided {times} times", *(e for e in history.events if e.f == f))
    for event in unrequested(history):
        yield finding(f"{event.type} of {event.f} {event.key} has no command", event)
    for op in operations(history):
        yield from _repeated(op.f, op.key, op.invokes, resumes)
        outcomes = tuple(event for event in op.outcomes if event.type != "info")
        yield from _repeated(f"the outcome of {op.f}", op.key, outcomes, resumes)
        yield from (
            finding(
                f"{event.f} {event.key} was sent to {op.node}, and {event.node} wrote its outcome", op.invoke, event
            )
            for event in op.outcomes
            if event.node != op.node
        )


def _repeated(what: str, key: str, occurrences: tuple[Event, ...], resumes: int) -> Iterator[Finding]:
    if len(occurrences) > 1 + resumes:
        yield finding(f"{what} {key} occurs {len(occurrences)} times in the history", *occurrences)
