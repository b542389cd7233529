"""Find the slow node or link today, without history: every node beside its peers, or the links between all pairs of nodes."""

from __future__ import annotations

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ..app.night_requests import SweepRequest


@options.verb(SweepRequest, options.slurm_job)
def command(session: Session, request: SweepRequest) -> int:
    """Run TRIAL on all nodes of a bed, and name the node, link, direction or switch that is slow beside the others.

    \b
    ccbed sweep gemm --each-node
    ccbed sweep links --each-pair

    Exit 0: nothing is odd. 1: a check of a run fails, such as different bits. 2: a suspect, or nothing could be judged.
    """
    from ...cli.render import summary_lines
    from ..app import repeats, sweep_rounds
    from ..render import sweep_view

    swept = sweep_rounds.run(session, request)
    if swept.broken:
        repeats.write_document(swept.directory, "sweep", summary_lines.document(swept.broken))
        return summary_lines.show(session, swept.broken, as_json=session.is_json)
    if session.is_json:
        session.terminal.json(swept.document)
    else:
        sweep_view.show_all(session.terminal, swept)
    return swept.code
