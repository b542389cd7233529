"""The end of a run that nobody drives any more: said in its history, then sealed as it is."""

from __future__ import annotations

from pathlib import Path

from ..model.event import Event, Source
from ..store import bundle, clock, seal
from ..store.journal import Journal


def close(directory: Path, reason: str) -> None:
    """Raises InfrastructureError when the journal cannot be written, or is being written by another."""
    with Journal(directory / bundle.HISTORY) as book:
        value = {"outcome": "interrupted", "reason": reason, "kind": ""}
        book.append(Event(type="note", f="run.end", at=clock.now(), source=Source(writer="ctl", n=0), value=value))
        book.sync()
    seal.seal(directory)
