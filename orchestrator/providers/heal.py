"""Ends the gangs of a run whose bundle is gone, so that nothing is known of it but its name."""

from __future__ import annotations

from ..model.bed import BedSpec, BedStatus
from ..model.event import Command
from ..model.provider import Provider
from . import asking

STOP_S = 10.0
#: Higher than any epoch that a run can have reached: everything older is ended.
_LAST_EPOCH = 1_000_000


def stop(provider: Provider, bed: BedSpec, status: BedStatus, run: str, token: str) -> tuple[str, ...]:
    """Stop the ranks of ``run`` on every busy node; a line for each node where that failed."""
    orders = tuple(
        Command(
            f="gang.stop",
            key=f"heal-{token}/stop/{node.name}",
            node=node.name,
            incarnation=status.node(node.name).incarnation,
            epoch=_LAST_EPOCH,
            deadline_s=STOP_S,
            value={"epoch": _LAST_EPOCH},
        )
        for node in bed.nodes
        if status.node(node.name).state == "busy"
    )
    answers = asking.bound(provider, bed, run).all(orders)
    problems = ((order.node, asking.problem(answers[order.key], order)) for order in orders)
    return tuple(f"node {node}: {text}" for node, text in problems if text)
