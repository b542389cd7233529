"""What to do after a night: the command that looks closer, and the one that accepts the change. Pure."""

from __future__ import annotations

import shlex

from ...model.errors import EXIT_INFRASTRUCTURE
from ..night_judgement import NightJudgement
from ..run_record import nodes_of
from ..suite import Night
from .table import BAD, ORDER


def next_step(night: Night, judgement: NightJudgement, directory: str) -> str:
    """Empty where there is nothing to do. ``directory``: of the night, as people name it."""
    if judgement.exit == EXIT_INFRASTRUCTURE:
        return f"ccbed status · then: ccbed nightly {shlex.quote(night.suite.name)}"
    if judgement.busy and judgement.outcome == "unknown":
        busy = ", ".join(entry.partition(":")[0] for entry in judgement.busy[:3])
        more = f" and {len(judgement.busy) - 3} more" if len(judgement.busy) > 3 else ""
        return f"end other work on the hosts of {busy}{more}, then: ccbed nightly {shlex.quote(night.suite.name)}"
    bad = sorted((*judgement.cells, *judgement.fleet), key=lambda judged: ORDER.index(judged.state))
    if not bad or bad[0].state not in BAD:
        has_reference = any(judged.compared and judged.compared.excess is not None for judged in bad)
        if has_reference or night.recorded:
            return ""
        return f"record a night, which the next ones are compared with: ccbed nightly {night.suite.name} --record"
    worst = bad[0]
    nodes = nodes_of(worst.finding.node or "")
    trials = {cell.name: cell.trial for cell in night.suite.cells}
    trial = shlex.quote(trials.get(worst.cell, "") or "node-probe")
    closer = "ccbed sweep links --each-pair" if len(nodes) > 1 else f"ccbed sweep {trial} --each-node"
    if not nodes:
        closer = f"ccbed run {trial}"
    accept = f"ccbed baseline accept {directory}"
    accept += f" --node {nodes[0]}" if len(nodes) == 1 else ""
    return f'{closer} · wanted? {accept} --because "…"'
