"""Repeated runs on the terminal, and as one document."""

from __future__ import annotations

from pathlib import Path

from ...app.places import short_path
from ...cli.render import summary_lines
from ...cli.render.terminal import Terminal
from ...model import codec
from ..app import repeats


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
    ended = repeats.ended(directory)
    if as_json:
        terminal.json(ended.document)
        return ended.code
    terminal.lines(f"{outcome:<8} {text}" for outcome, text in ended.findings)
    report = f"; report: {short_path(directory)}/{repeats.SUMMARY}" if ended.verb == "run" else ""
    name = "repeat" if ended.verb == "run" else ended.verb
    terminal.line(f"{name:<8} has ended, exit {ended.code}{report}")
    return ended.code


def _document(repeated: repeats.Repeated) -> object:
    """All runs, with the error that ended them."""
    error = repeated.error
    failure = {"error": {"problems": list(error.problems), "next": error.hint}} if error else {}
    return {
        "runs": [summary_lines.document(result) for result in repeated.results],
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
    terminal.line(f"report   {short_path(repeated.directory)}/{repeats.SUMMARY}")
