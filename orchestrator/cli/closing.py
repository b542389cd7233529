"""The end of a run that nobody drives any more: what its nodes left is fetched, its history says so, it is sealed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..model.event import Event, Source
from ..model.provider import Provider
from ..store import bundle, clock, seal
from ..store.journal import Journal

#: Per node and path, what is fetched at most, in bytes.
_LIMIT = 256 * 1024**2


def give_up(directory: Path, provider: Provider, heard: Iterable[Event], reason: str) -> None:
    """``heard``: what the bed has said since the run began. Raises InfrastructureError when the journal cannot be written."""
    plan = bundle.load_plan(directory)
    for name in plan.nodes:
        provider.fetch(name, f"runs/{plan.run}", directory / "nodes" / name, _LIMIT)
        provider.fetch(name, "agent.log", directory / "nodes" / name / "agent.log", _LIMIT)
    with Journal(directory / bundle.HISTORY) as book:
        for event in heard:
            book.append(event)
        value = {"outcome": "interrupted", "reason": reason, "kind": ""}
        book.append(Event(type="note", f="run.end", at=clock.now(), source=Source(writer="ctl", n=0), value=value))
        book.sync()
    seal.seal(directory)
