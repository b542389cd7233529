"""The end of a run that nobody drives any more: said in its history, then sealed as it is."""

from __future__ import annotations

import time
from pathlib import Path

from ..model.event import Clock, Event, Source
from ..store import bundle, seal
from ..store.journal import Journal


def give_up(directory: Path, reason: str) -> None:
    """Raises InfrastructureError when the journal cannot be written, or is being written by another."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now = Clock(boot=boot, mono=time.monotonic(), wall=time.time())
    with Journal(directory / bundle.HISTORY) as book:
        value = {"outcome": "interrupted", "reason": reason, "kind": ""}
        book.append(Event(type="note", f="run.end", at=now, source=Source(writer="ctl", n=book.next_own), value=value))
        book.sync()
    seal.seal(directory)
