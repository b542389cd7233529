"""Versions that changed in the night in which a metric changed: named, never judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import deviations, robust
from .finding import Finding

if TYPE_CHECKING:
    from .nights import Panel

#: A fleet's level has changed if its nodes' median shift is as large as this, and as this many of its own sigmas.
MINIMUM_RATIO, SIGMAS = 0.02, 5.0
#: The host of a node: named when the node moved, and not where one of the two nights does not tell it.
HOST = "host"


def changes(panel: Panel, node: str, index: int) -> tuple[str, ...]:
    """The suspects of a node that differ between night ``index`` and the last recorded night of the node before it."""
    after = panel.suspects.get((panel.nights[index], node), {})
    before: Mapping[str, str] = next(
        (panel.suspects[night, node] for night in reversed(panel.nights[:index]) if (night, node) in panel.suspects), {}
    )
    names = sorted(name for name in {*before, *after} if before and before.get(name) != after.get(name))
    if not (before.get(HOST) and after.get(HOST)):
        names = [name for name in names if name != HOST]
    return tuple(f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names)


def fleet_change(panel: Panel) -> Finding:
    """Whether all nodes changed tonight together. The effect of a day hides this from the gates per node."""
    import numpy as np

    metric = panel.metric.name
    medians = robust.median(panel.slowness, axis=2)
    history = medians[:-1][-deviations.WINDOW :]
    measured = ~np.isnan(medians[-1]) & (np.sum(~np.isnan(history), axis=0) >= deviations.LEAST_NIGHTS)
    if not measured.any():
        return Finding(
            gate="fleet", outcome="unknown", metric=metric, text=f"{metric}: no node has both a history and a value"
        )
    offsets = robust.median(history[:, measured])
    shift = float(np.median(medians[-1, measured] - offsets))
    usual = float(robust.sigma(robust.median(history[:, measured] - offsets, axis=1)))
    nodes = [node for node, known in zip(panel.nodes, measured, strict=True) if known]
    counts: dict[str, int] = {}
    for node in nodes:
        for change in changes(panel, node, len(panel.nights) - 1):
            counts[change] = counts.get(change, 0) + 1
    is_gang = nodes == [""]
    where = "" if is_gang else f" in the median of {len(nodes)} nodes"
    text = f"{metric} {-shift:+.1%}{where}; usual from night to night {usual:.1%}"
    if shift < max(MINIMUM_RATIO, SIGMAS * usual):
        return Finding(gate="fleet", outcome="pass", metric=metric, text=text)
    named = tuple(
        change if is_gang else f"{change} on {count} of {len(nodes)} nodes" for change, count in sorted(counts.items())
    )
    text += f"; since {', '.join(named)}" if named else "; no recorded version changed"
    return Finding(gate="fleet", outcome="warn", metric=metric, text=text, suspects=named, since=panel.label(-1))
