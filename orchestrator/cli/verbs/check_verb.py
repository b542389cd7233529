"""Judge a run again from its bundle; needs no bed."""

from __future__ import annotations

from ...app import check
from ...app.check import CheckRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import summary_lines


@options.verb(CheckRequest)
def command(session: Session, request: CheckRequest) -> int:
    """Verify the checksums of RUN (a directory, `latest`, or the end of its name), judge it again, print the verdicts.

    The report is written again only if a verdict has changed; `ccbed report` always does it.

    The plan in the bundle lists the checks. Code of the bundle is loaded only where you ask for it:

    \b
    ccbed --plugins runs/latest/inputs/plugins check
    """
    return summary_lines.show(session, check.run(session, request), as_json=session.is_json)
