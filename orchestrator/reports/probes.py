"""The figures of probed nodes for programs: a line of CSV for each figure of each node."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.run import Run
from ..views import probes


def render(run: Run) -> Mapping[str, bytes]:
    """``probes.csv``; nothing for a run that probed no node."""
    figures = probes.figures(run.history)
    if not figures:
        return {}
    from .page import sheet  # with the views of collectives

    return {"probes.csv": sheet.probed(figures).encode(errors="replace")}
