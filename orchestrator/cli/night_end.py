"""The end of a night: judge it against the earlier ones, write its reports, notify, and print the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import codec
from ..nightly import rows as night_rows
from ..nightly.suite import Night, Row
from .inputs.session import Session
from .render.terminal import short_path

_WORDS = {0: "PASS", 1: "FAIL", 2: "UNKNOWN", 4: "BROKEN"}


def finish(session: Session, directory: Path, night: Night, rows: Sequence[Row], options: Mapping[str, Any]) -> int:
    """Return the exit code of the night."""
    code = night_rows.exit_code(rows)
    if options["as_json"]:
        session.terminal.json(document(directory, night, rows, code))
        return code
    counts = Counter(row.state for row in rows)
    text = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    word = _WORDS.get(code, "FAIL")
    session.terminal.line(f"{session.terminal.style(f'{word:<9}', word)} {text}     exit {code}")
    session.terminal.line(f"night     {short_path(directory)}")
    return code


def document(directory: Path, night: Night, rows: Sequence[Row], code: int) -> dict[str, Any]:
    """One JSON document of a night."""
    return {
        "night": night.name,
        "directory": str(directory),
        "suite": night.suite.name,
        "bed": night.bed,
        "number": night.number,
        "exit": code,
        "rows": [codec.plain(row) for row in rows],
    }
