"""Check the node on which ccbed runs within a minute: for Slurm's prolog, its health check, and LBNL NHC."""

from __future__ import annotations

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ..app import node_probing
from ..app.node_probing import ProbeRequest

_WORDS = {"pass": "PASS", "fail": "FAIL", "unknown": "UNKNOWN"}


@options.verb(ProbeRequest)
def command(session: Session, request: ProbeRequest) -> int:
    """Probe this node without a bed, compare with the baselines, and print one line with the reason.

    \b
    Prolog=/etc/slurm/prolog.d/ccbed               ccbed probe --prolog --baselines /etc/ccbed/baselines
    * || check_cmd_status -t 60 -r 0 ccbed probe --prolog         in nhc.conf

    Exit 0: healthy. 1: defective. 2: not known; with --prolog that is 0, so that no node is drained for want of knowledge.
    """
    probed = node_probing.run(session, request)
    if session.is_json:
        session.terminal.json(probed.document)
    else:
        word = _WORDS[probed.checked.outcome]
        more = f"; {probed.drained}" if probed.drained else ""
        session.terminal.line(
            f"{session.terminal.style(f'{word:<8}', word)} {probed.checked.reason}{more} ({probed.took_s:.1f} s)     exit {probed.code}"
        )
    return probed.code
