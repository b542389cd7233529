"""Records what the script reports through ``ccbed_events``: lines of the kind ``claim``, beside what the watcher observes."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from . import install, record, steps
from .checkpoints import file_hashes, saves
from .checkpoints.loads import HASHED_AT_ONCE

#: Letters of a text that are recorded.
LETTERS = 500
_ids = itertools.count(1)
_lock = threading.Lock()


def add(what: str, **fields: Any) -> None:
    """Record a claim: ``step``, ``resumed``, ``saved``, ``point`` or ``final``. A process without torch begins its record here."""
    install.start_record()
    _add(what, {name: value[:LETTERS] if isinstance(value, str) else value for name, value in fields.items()})


@record.guarded("claims")
def _add(what: str, fields: dict[str, Any]) -> None:
    with _lock:
        fields = {"id": next(_ids), "what": what, "n": steps.completed(), **fields}
    stated = fields.pop("path" if what == "saved" else "source", "")
    path = saves.absolute(stated) if stated and file_hashes.stamp(stated) else ""
    if what == "saved":
        saves.report_file(path, "script", api="script", step=fields["step"])
    if what == "resumed" and path:
        _record_source({**fields, "path": path})
    else:
        record.line("claim", **fields, source=stated)


def _record_source(fields: dict[str, Any]) -> None:
    """The SHA-256 of a large file follows in a line with the same ``id``."""
    target = saves.identity(fields["path"])
    stamp = file_hashes.stamp(target)
    if stamp is not None and stamp[1] <= HASHED_AT_ONCE:
        record.line("claim", **fields, bytes=stamp[1], sha256=file_hashes.hash_unchanged(target, stamp))
        return
    record.line("claim", **fields)
    if stamp is not None:
        saves.hashes.submit(lambda: record.line("claim", **fields, sha256=file_hashes.hash_unchanged(target, stamp)))
