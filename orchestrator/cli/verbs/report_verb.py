"""Write the report of a run again from its bundle."""

from __future__ import annotations

from pathlib import Path

from ... import products
from ...app import nights
from ...app.places import short_path
from ...app.recorded import report
from ...app.recorded.report import ReportRequest
from ...model.errors import UsageError
from ..inputs import options
from ..inputs.terminal_session import Session


@options.verb(ReportRequest)
def command(session: Session, request: ReportRequest) -> int:
    """Write the report of RUN again: index.html, summary.md, junit.xml, …

    ccbed report --index runs/
    """
    terminal = session.terminal
    if request.runs is not None:
        nights.product("--index").show_page(session, request.runs)
    elif request.table:
        _show_table(session, request)
    else:
        written = report.write(session, request)
        terminal.clear()
        if session.is_json:
            terminal.json(written)
        else:
            terminal.lines(short_path(file) for file in written.files)
    return 0


def _show_table(session: Session, request: ReportRequest) -> None:
    collective = products.part("collectives", "sections", "--table")
    run = report.measured(request)
    directory = Path(run.directory)
    if session.is_json:
        session.terminal.json(collective.document(run))
        return
    lines = list(collective.lines(run, directory, whole=True, width=session.terminal.width))
    if not lines:
        raise UsageError(
            f"{short_path(directory)}: no collectives were measured in this run", hint="ccbed run allreduce"
        )
    session.terminal.lines(lines)
