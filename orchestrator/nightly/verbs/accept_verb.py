"""Probe a new cluster once, every node and every link, and write its acceptance certificate."""

from __future__ import annotations

from collections import Counter

from ...app.places import short_path
from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ...core.verdict.sentence import count
from ..app import night_runs
from ..app.night_requests import AcceptRequest
from ..app.night_results import Acceptance


@options.shows(AcceptRequest, night_runs.accept)
def command(session: Session, accepted: Acceptance) -> None:
    """Probe the bed of INVENTORY once, or a bed that is up, and write its certificate, with checksums.

    \b
    ccbed accept inventories/new-cluster.yml
    ccbed accept --bed lab
    """
    terminal, document = session.terminal, accepted.certificate
    terminal.line(f"{document['decision']}     {short_path(accepted.summary)}     exit {accepted.code}")
    compared = Counter(figure["compared_with"] for figure in document["figures"])
    terminal.lines(f"  compared     {count(number, 'figure')} with {text}" for text, number in compared.items())
    terminal.lines(f"  not checked  {text}" for text in document["not_checked"])
