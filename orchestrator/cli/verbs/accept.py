"""Probe a new cluster once, every node and every link, and write its acceptance certificate."""

from __future__ import annotations

from ...app.nightly import acceptance
from ...app.nightly.acceptance import AcceptRequest
from ...app.places import short_path
from ..inputs import options
from ..inputs.session import Session


@options.verb(AcceptRequest)
def command(session: Session, request: AcceptRequest) -> int:
    """Probe the bed of INVENTORY once, or a bed that is up, and write its certificate: certificate.json, certificate.md, sealed.

    \b
    ccbed accept inventories/new-cluster.yml
    ccbed accept --bed lab
    """
    terminal, accepted = session.terminal, acceptance.run(session, request)
    document, code = accepted.certificate, accepted.code
    if session.is_json:
        terminal.json({**document, "directory": str(accepted.directory)})
        return code
    terminal.line(f"{document['decision']}     {short_path(accepted.summary)}     exit {code}")
    terminal.lines(f"  not checked  {text}" for text in document["not_checked"])
    return code
