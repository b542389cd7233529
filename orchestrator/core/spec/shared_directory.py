"""Which nodes of a trial share the directory for checkpoints, and why others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model.bed import NodeSpec
from ...model.plan import Gap


def apart(nodes: Iterable[str], gaps: Iterable[Gap]) -> str:
    """Why these nodes do not share it; empty where they do. What lies between others is none of their business."""
    there = set(nodes)
    touched = (gap for gap in gaps if gap.one & there and (gap.other is None or gap.other & there))
    return next((gap.reason for gap in touched), "")


def sorted_out(
    slots: Sequence[NodeSpec], spares: Sequence[NodeSpec], gaps: Sequence[Gap]
) -> tuple[tuple[NodeSpec, ...], Mapping[str, str]]:
    """(the spares that share it with the nodes and with each other, the others with the reason)."""
    kept: list[NodeSpec] = []
    left_out: dict[str, str] = {}
    for spare in spares:
        reason = apart((node.name for node in (*slots, *kept, spare)), gaps)
        if reason:
            left_out[spare.name] = reason
        else:
            kept.append(spare)
    return tuple(kept), left_out
