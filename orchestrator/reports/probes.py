"""The figures of probed nodes for programs: a line of CSV for each figure of each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.run import Run
from ..views import probes
from ..views.probes import NodeFigure


def render(run: Run) -> Mapping[str, bytes]:
    """``probes.csv``; nothing for a run that probed no node."""
    figures = probes.figures(run.history)
    if not figures:
        return {}
    return {"probes.csv": probed(figures).encode(errors="replace")}


def probed(figures: Iterable[NodeFigure]) -> str:
    from .page.comma_separated import written  # few runs probe nodes

    return written([
        {
            "node": figure.node, "rank": figure.rank, "probe": figure.probe, "figure": figure.name, "unit": figure.unit,
            "better": figure.better, "median": figure.median, "least": min(figure.repeats), "greatest": max(figure.repeats),
            "repeats": len(figure.repeats), "ceiling": figure.ceiling,
        }
        for figure in figures
    ])  # fmt: skip
