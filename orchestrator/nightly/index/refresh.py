"""Bring the index up to date with a directory of runs: read what changed, drop what was removed."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from ...model.errors import CcbedError
from ...model.frozen import replace
from . import scan
from .database import Database, entries
from .entries import NightContent

if TYPE_CHECKING:
    from ..run_record import RunRecord

ReadRun = Callable[[Path], "RunRecord"]

#: Directories of a transaction. A refresh that is killed keeps the transactions before.
BATCH = 400


def refresh(database: Database, directory: Path, root: str, read: ReadRun) -> int:
    """Return how many directories were read. Raises InfrastructureError, DamagedIndexError.

    The order matters: a run that another process adds meanwhile is not removed.
    """
    with database.read() as connection:
        query = sa.select(entries.c.directory, entries.c.kind, entries.c.signature).where(entries.c.root == root)
        known = {row.directory: row for row in connection.execute(query)}
    listed = list(scan.entries(directory, {name for name, row in known.items() if row.kind == "run"}))
    changed = [
        entry for entry in listed if entry.directory not in known or known[entry.directory].signature != entry.signature
    ]
    removed = known.keys() - {entry.directory for entry in listed}
    _write(database, root, removed, [])
    rows = ({"root": root, **_row(directory, entry, read)} for entry in changed)
    while batch := list(itertools.islice(rows, BATCH)):
        _write(database, root, [row["directory"] for row in batch], batch)
    return len(changed)


def _write(database: Database, root: str, directories: Iterable[str], rows: list[dict[str, Any]]) -> None:
    """Replace what is known of the directories. Another process may have written them meanwhile."""
    names = [{"name": name} for name in directories]
    if not names:
        return
    with database.write() as connection:
        is_one = (entries.c.root == root) & (entries.c.directory == sa.bindparam("name"))
        connection.execute(sa.delete(entries).where(is_one), names)
        if rows:
            connection.execute(sa.insert(entries), rows)


def outdate(database: Database, root: str) -> None:
    """The next refresh reads everything again. Until then other processes read what is there."""
    with database.write() as connection:
        connection.execute(sa.update(entries).where(entries.c.root == root).values(signature=""))


def _row(root: Path, entry: scan.Entry, read: ReadRun) -> dict[str, Any]:
    """A row of the table but for its root. What cannot be read is a row with the reason."""
    row = {
        "directory": entry.directory, "signature": entry.signature, "kind": "skipped", "night": entry.night, "bed": "", "trial": "",
        "outcome": "", "started_s": None,
    }  # fmt: skip
    directory = root / entry.directory
    try:
        if entry.is_night:
            night = _read_night(directory, entry)
            known = {"kind": "night", "bed": _text(night.bed), "started_s": seconds(night.started)}
            return {**row, **known, "content": _encoded(night)}
        run = replace(read(directory), directory=entry.directory, night=entry.night)
        known = {name: _text(getattr(run, name)) for name in ("bed", "trial", "outcome")}
        return {**row, "kind": "run", **known, "started_s": seconds(run.started), "content": _encoded(run)}
    except CcbedError as error:
        return {**row, "content": _text("; ".join(error.problems))}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return {**row, "content": _text(f"{directory}: {type(error).__name__}: {error}")}


def _read_night(directory: Path, entry: scan.Entry) -> NightContent:
    """Raises CcbedError, also for a night that changed since its seal."""
    from .. import night_files

    is_closed, judgement = night_files.is_closed(directory), None
    if is_closed and (problems := night_files.verify(directory)):
        raise CcbedError(*problems)
    night = night_files.read_night(directory)
    with contextlib.suppress(CcbedError):
        judgement = night_files.read_judgement(directory)
    return NightContent(
        directory=entry.directory, name=night.name, bed=night.bed, suite=night.suite.name, number=night.number,
        started=night.started, is_closed=is_closed, outcome=judgement.outcome if judgement else None,
        exit=judgement.exit if judgement else None, sentence=judgement.sentence if judgement else "",
        rows=tuple(row for row in night_files.read_rows(directory) if row.run),
    )  # fmt: skip


def _encoded(content: object) -> str:
    """JSON that can be read again: a value that JSON lacks would damage the index for good. Raises ValueError."""
    encoded = msgspec.json.encode(content)
    msgspec.json.decode(encoded, type=type(content))
    return encoded.decode()


def _text(text: str) -> str:
    """Databases reject NUL and halves of a surrogate pair."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def seconds(moment: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, in UTC unless it says otherwise; None for any other text."""
    try:
        parsed = datetime.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
