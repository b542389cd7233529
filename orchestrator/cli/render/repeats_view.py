"""Repeated runs on the terminal, and as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...app import repeats
from ...app.places import short_path
from ...model import codec
from . import summary
from .terminal import Terminal


def show(terminal: Terminal, repeated: repeats.Repeated, *, as_json: bool) -> int:
    """Print how the runs ended. Returns their exit code."""
    if as_json:
        terminal.json(_document(repeated))
    if repeated.error:
        terminal.error(repeated.error.problems, repeated.error.hint)
    elif not as_json and repeated.night.suite.cells[0].repeats > 1:
        _show_figures(terminal, repeated)
    return repeated.code


def show_ended(terminal: Terminal, directory: Path, *, as_json: bool) -> int:
    """Show runs that have ended. Returns their exit code."""
    verb, document = repeats.ended(directory)
    if as_json:
        terminal.json(document)
        return int(document["exit"])
    terminal.lines(f"{item['outcome']:<8} {item['text']}" for item in document.get("findings", ()))
    report = f"; report: {short_path(directory)}/report/index.html" if verb == "run" else ""
    name = "repeat" if verb == "run" else verb
    terminal.line(f"{name:<8} has ended, exit {document['exit']}{report}")
    return int(document["exit"])


def _document(repeated: repeats.Repeated) -> dict[str, Any]:
    """All runs, with the error that ended them."""
    error = repeated.error
    failure = {"error": {"problems": list(error.problems), "next": error.hint}} if error else {}
    return {
        "runs": [summary.document(result) for result in repeated.results],
        "exit": repeated.code,
        **failure,
        "directory": str(repeated.directory),
        "distribution": [codec.plain(figure) for figure in repeated.figures],
    }


def _show_figures(terminal: Terminal, repeated: repeats.Repeated) -> None:
    terminal.line()
    terminal.line(f"repeat   {repeated.counts}")
    if repeated.figures:
        head = ("FIGURE", "N", "MEDIAN", "INTERVAL OF 95 %", "LEAST", "GREATEST")
        terminal.table(head, map(repeats.columns, repeated.figures))
    terminal.line(f"report   {short_path(repeated.directory)}/report/index.html")
